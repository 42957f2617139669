// Runs one case through the public API and holds every result to the oracle.
#pragma once

#include <string>

#include "check/cases/case.h"
#include "check/memory/memory.h"

namespace cuflash::check {

// "" where everything agrees, otherwise one line that says what does not: a result against the oracle, a byte written or
// left unwritten that should not be, a second run that differs, tile statistics that cannot be, or an exception.
std::string run_case(const Case& c);

// Constant rows have equal scores, and so have tiny inputs: weights, and what rounding does to them, repeat from key to
// key.
bool has_correlated_errors(const Case& c);

// Forward, then deterministic backward with what forward wrote; nothing is compared.
void call_both(CaseMemory& memory);

}  // namespace cuflash::check
