#include "cpu/plan/tuned_tile.h"

#include "cpu/plan/cpuinfo.h"
#include "error.h"
#include "tuned/table.h"

namespace cuflash::cpu {

std::string tuned_name() {
  std::string name;
  const auto values = read_cpuinfo();
  // Arm reports numbers instead of a model name.
  for (const char* key : {"model name", "CPU implementer", "CPU part", "CPU variant"})
    if (const auto found = values.find(key); found != values.end()) name += join(found->second, ", ");
  return name + isa_name();
}

const tuned::Choice* tuned_choice(tuned::Direction direction, const Problem& problem) {
  // If nothing was tuned, the name of the processor is not read at all.
  static const tuned::Choices* const choices =
      &(tuned::table().devices.empty() ? tuned::choices_of("") : tuned::choices_of(tuned_name()));
  return tuned::choice_for(*choices, direction, problem, tuned::Heads::any);
}

}  // namespace cuflash::cpu
