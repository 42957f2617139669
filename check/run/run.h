// Runs one case through the public API and compares every result with the oracle.
#pragma once

#include <string>

#include "check/cases/case.h"
#include "check/cases/memory.h"

namespace cuflash::check {

// "" if everything agrees. Otherwise one line that says what is wrong: a result differs from the oracle, a byte was written
// or left unwritten by mistake, a second run differs, tile statistics are impossible, or an exception was thrown.
std::string run_case(const Case& c);

// Constant rows and tiny inputs have equal scores, so that weights and their rounding errors repeat from key to key.
bool has_correlated_errors(const Case& c);

// Forward, then deterministic backward on its outputs; nothing is compared.
void call_both(CaseMemory& memory);

}  // namespace cuflash::check
