// Shows on one screen that the library is exact, and saves the time and the memory of a score matrix.
#include "cli/demo/demo.h"

#include <iostream>

#include "cli/arguments/commands.h"
#include "cli/arguments/exit.h"
#include "machine/cpu.h"
#include "support/text.h"

namespace cuflash::cli {

int run_demo(const DemoOptions& options) {
  const Execution execution{.num_threads = options.threads};
  const DemoShape shape{.batch = 2, .heads_q = 4, .heads_k = 2, .seq = 200, .dim = 64};
  const DemoProblem problem(shape, DType::f32);
  std::cout << "machine    " << machine::this_cpu().model << "\n"
            << cuflash::explain(problem.attention(), problem.outputs(), execution) << "\n";

  std::cout << "Exact: the largest error against a float64 evaluation of the definition, forward and backward\n"
            << "(batch 2, 4 query and 2 key heads, length 200, head size 64, causal; naive: the same definition in "
               "that type)\n"
            << "  type  result cuflash    naive\n";
  bool agrees = true;
  for (const DType type : {DType::f32, DType::bf16}) agrees = show_accuracy(shape, type, execution) && agrees;

  std::cout << "\nFast and small: forward with batch 1, 8 heads, head size 64, f32, causal\n"
            << "(naive: the score matrix in memory, one thread; extra: memory besides inputs and outputs)\n";
  show_growth(options.max_len, execution);
  if (!agrees) std::cerr << "cuflash: a result disagrees with the float64 evaluation, see above\n";
  return agrees ? kExitOk : kExitFailed;
}

}  // namespace cuflash::cli
