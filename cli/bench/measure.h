// Measures points of the grid on this machine.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/bench/cuda.h"
#include "cli/bench/file.h"

namespace cuflash::cli {

struct MeasureOptions {
  std::string device;  // "cpu" or "cuda"
  double seconds = 0.3;
  int32_t threads = 0;
  std::set<std::string> contestants;
};

class Measurer {
 public:
  explicit Measurer(const MeasureOptions& options);

  // The ceilings that bound these points.
  std::map<std::string, double> ceilings(const std::vector<BenchPoint>& points);

  // One result for each contestant, with its share of the ceilings. Notes name what was left out. Throws Interrupted
  // (cli/terminal/interrupt.h).
  std::vector<BenchResult> measure(const BenchPoint& point, const std::map<std::string, double>& ceilings,
                                   std::vector<std::string>& notes);

 private:
  bool fits(const BenchPoint& point) const;
  bool naive_in_time(const BenchPoint& point);

  MeasureOptions options_;
  std::unique_ptr<CudaTimer> cuda_;  // null: the host
  // Seconds per operation of naive attention, by type and direction, as last measured.
  std::map<std::pair<std::string, std::string>, double> naive_speed_;
};

// The name of the ceiling that bounds a point; "" if none is known.
std::string ceiling_of(const BenchPoint& point);

// The quantile at this fraction, in [0, 1], with linear interpolation between sorted values.
double quantile(std::vector<double> values, double fraction);

}  // namespace cuflash::cli
