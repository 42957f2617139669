#include "cli/tune/results.h"

#include <array>
#include <ctime>
#include <string_view>

#include "cli/tune/option_sets.h"
#include "support/kernel_headers.h"
#include "support/text.h"

namespace cuflash::cli {

namespace {

std::string utc_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts)};
}

// The text with spaces in place of quotation marks and unprintable characters.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c < ' ' || c > '~' || c == '"') c = ' ';
  return text;
}

std::string row_of(const BenchPoint& p, const CandidateTime& time) {
  return join(p.direction, ",", p.dtype, ",", p.batch, ",", p.heads_q, ",", p.heads_k, ",", p.len_q, ",", p.len_k, ",",
              p.head_dim, ",", p.head_dim_v, ",", p.causal ? 1 : 0, ",\"", option_set_text(p.options), "\",",
              to_string(time.choice), ",", time.ms > 0 ? fixed(time.ms, 5) : "", ",\"", one_line(time.verdict), "\"\n");
}

}  // namespace

std::string tune_csv(const std::vector<TuneOutcome>& outcomes, const std::string& command, const std::string& device) {
  std::string text =
      join("# ", one_line(command), "\n# ", device, "\n# ", cuflash_version(), ", kernels ",
           std::string_view(kernel_headers_hash()).substr(0, 16), ", ", utc_date(), "\n",
           "direction,dtype,batch,heads_q,heads_k,len_q,len_k,head_dim,head_dim_v,causal,options,choice,ms,"
           "verdict\n");
  for (const TuneOutcome& outcome : outcomes)
    for (const CandidateTime& time : outcome.times) text += row_of(outcome.point, time);
  return text;
}

}  // namespace cuflash::cli
