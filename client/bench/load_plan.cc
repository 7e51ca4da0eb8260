#include "client/bench/load_plan.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace retroinfer::client {

std::vector<PlannedRequest> PlanLoad(const LoadPlanOptions& options) {
  std::mt19937_64 random(options.seed);
  std::uniform_int_distribution<int32_t> any_token(0, options.vocab_size - 1);
  const auto draw_token = [&] {
    int32_t token;
    do {
      token = any_token(random);
    } while (std::find(options.excluded_tokens.begin(), options.excluded_tokens.end(), token) !=
             options.excluded_tokens.end());
    return token;
  };
  std::vector<int32_t> prefix(static_cast<size_t>(options.prefix_len));
  std::generate(prefix.begin(), prefix.end(), draw_token);

  // Exponential gaps make a Poisson process; the first request comes at once.
  std::exponential_distribution<double> gap(
      std::isinf(options.request_rate) ? 1.0 : options.request_rate);
  absl::Duration arrival = absl::ZeroDuration();
  std::vector<PlannedRequest> plan(static_cast<size_t>(options.num_prompts));
  for (PlannedRequest& request : plan) {
    request.arrival = arrival;
    request.token_ids = prefix;
    request.token_ids.resize(static_cast<size_t>(options.input_len));
    std::generate(request.token_ids.begin() + options.prefix_len, request.token_ids.end(),
                  draw_token);
    if (!std::isinf(options.request_rate)) arrival += absl::Seconds(gap(random));
  }
  return plan;
}

}  // namespace retroinfer::client
