// A magnitude is read digit by digit, beside the digits of its bounds. Of each bound a state knows
// how the digits so far compare with as many digits of the bound; how the numbers compare is known
// where the number ends, since a number of more digits is the larger one.
#include "text/constraint/number_range.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace retroinfer::constraint {
namespace {

constexpr size_t kStatesMax = size_t{1} << 16;
constexpr size_t kIntegerDigits = 18;
constexpr size_t kNumberDigits = 20;

// What a bound and the digits so far have come to: -1, 0 or 1 as the digits are less, the same or
// greater.
using Order = int8_t;

Order OrderOf(char a, char b) { return static_cast<Order>(a < b ? -1 : a > b ? 1 : 0); }

class Magnitudes {
 public:
  Magnitudes(const std::optional<NumberBound>& low, const std::optional<NumberBound>& high,
             const NumberRange& range)
      : low_(low), high_(high), range_(range) {
    digits_max_ = range.is_integer ? kIntegerDigits : kNumberDigits;
    if (low.has_value()) digits_max_ = std::max(digits_max_, low->value.whole.size());
    if (high.has_value()) digits_max_ = high->value.whole.size();
  }

  std::optional<ExpressionPtr> Build() {
    StateOf({});
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (keys_.size() > kStatesMax) return std::nullopt;
      AddEdges(static_cast<uint32_t>(i));
    }
    return Graph(std::move(states_));
  }

 private:
  struct Key {
    enum class Phase : uint8_t { kBegin, kZero, kWhole, kFraction };
    Phase phase = Phase::kBegin;
    size_t digits = 0;  // of this phase
    Order low = 0;
    Order high = 0;
    int64_t remainder = 0;
    bool operator==(const Key&) const = default;
    template <typename H>
    friend H AbslHashValue(H hash, const Key& key) {
      return H::combine(std::move(hash), key.phase, key.digits, key.low, key.high, key.remainder);
    }
  };
  using Phase = Key::Phase;

  uint32_t StateOf(const Key& key) {
    const auto [known, is_new] = ids_.try_emplace(key, static_cast<uint32_t>(keys_.size()));
    if (is_new) {
      keys_.push_back(key);
      states_.push_back({.edges = {}, .accepts = Accepts(key)});
    }
    return known->second;
  }

  // How the number compares with the bound if its whole part ends here.
  static Order WholeOrder(const NumberBound& bound, size_t digits, Order so_far) {
    const size_t wanted = bound.value.whole.size();
    if (digits != wanted) return digits < wanted ? -1 : 1;
    return so_far;
  }

  static Order FinalOrder(const NumberBound& bound, const Key& key, Order so_far) {
    const bool in_fraction = key.phase == Phase::kFraction;
    const Order order = in_fraction ? so_far : WholeOrder(bound, key.digits, so_far);
    if (order != 0) return order;
    const size_t read = in_fraction ? key.digits : 0;
    return bound.value.fraction.size() > read ? -1 : 0;
  }

  bool Accepts(const Key& key) const {
    if (key.phase == Phase::kBegin || (key.phase == Phase::kFraction && key.digits == 0)) {
      return false;
    }
    if (key.remainder != 0) return false;
    if (low_.has_value()) {
      const Order order = FinalOrder(*low_, key, key.low);
      if (order < 0 || (order == 0 && low_->is_exclusive)) return false;
    }
    if (high_.has_value()) {
      const Order order = FinalOrder(*high_, key, key.high);
      if (order > 0 || (order == 0 && high_->is_exclusive)) return false;
    }
    return true;
  }

  static Order AfterDigit(const std::optional<NumberBound>& bound, bool in_fraction, size_t index,
                          char digit, Order so_far) {
    if (!bound.has_value() || so_far != 0) return so_far;
    const std::string& digits = in_fraction ? bound->value.fraction : bound->value.whole;
    if (index < digits.size()) return OrderOf(digit, digits[index]);
    return in_fraction ? OrderOf(digit, '0') : Order{0};
  }

  Key AfterDigit(const Key& key, char digit) const {
    Key next = key;
    const bool in_fraction = key.phase == Phase::kFraction;
    if (!in_fraction) {
      next.phase = key.phase == Phase::kBegin && digit == '0' ? Phase::kZero : Phase::kWhole;
    }
    next.low = AfterDigit(low_, in_fraction, key.digits, digit, key.low);
    next.high = AfterDigit(high_, in_fraction, key.digits, digit, key.high);
    next.digits = key.digits + 1;
    next.remainder = (key.remainder * 10 + (digit - '0')) % range_.multiple_of;
    return next;
  }

  void AddEdges(uint32_t id) {
    const Key key = keys_[id];
    const bool may_have_digit =
        key.phase == Phase::kFraction
            ? key.digits < range_.fraction_digits_max
            : key.phase != Phase::kZero && key.digits < std::max<size_t>(digits_max_, 1);
    if (may_have_digit) {
      std::vector<std::pair<uint32_t, CodePointSet>> targets;
      for (char digit = '0'; digit <= '9'; ++digit) {
        const uint32_t target = StateOf(AfterDigit(key, digit));
        const auto code = static_cast<char32_t>(digit);
        if (targets.empty() || targets.back().first != target) targets.push_back({target, {}});
        targets.back().second.Add(code, code);
      }
      for (auto& [target, set] : targets) {
        states_[id].edges.push_back({Characters(std::move(set)), target});
      }
    }
    const bool may_have_point = (key.phase == Phase::kZero || key.phase == Phase::kWhole) &&
                                !range_.is_integer && range_.fraction_digits_max > 0;
    if (!may_have_point) return;
    Key next = {.phase = Phase::kFraction};
    if (low_.has_value()) next.low = WholeOrder(*low_, key.digits, key.low);
    if (high_.has_value()) next.high = WholeOrder(*high_, key.digits, key.high);
    const uint32_t target = StateOf(next);
    states_[id].edges.push_back({Characters({{'.', '.'}}), target});
  }

  const std::optional<NumberBound>& low_;
  const std::optional<NumberBound>& high_;
  const NumberRange& range_;
  size_t digits_max_;
  std::vector<Key> keys_;  // by state
  std::vector<GraphState> states_;
  absl::flat_hash_map<Key, uint32_t> ids_;
};

NumberBound Negated(NumberBound bound) {
  bound.value.is_negative = !bound.value.is_negative && !bound.value.IsZero();
  return bound;
}

}  // namespace

std::optional<ExpressionPtr> NumbersIn(const NumberRange& range) {
  const NumberBound zero = {};
  std::vector<ExpressionPtr> parts;
  if (!range.max.has_value() || !range.max->value.is_negative) {
    const bool has_low = range.min.has_value() && !range.min->value.is_negative;
    const auto low = has_low ? range.min : std::nullopt;
    const auto numbers = Magnitudes(low, range.max, range).Build();
    if (!numbers.has_value()) return std::nullopt;
    parts.push_back(*numbers);
  }
  if (!range.min.has_value() || range.min->value.is_negative) {
    std::optional<NumberBound> high;
    if (range.min.has_value()) high = Negated(*range.min);
    std::optional<NumberBound> low = NumberBound{.value = zero.value, .is_exclusive = true};
    if (range.max.has_value() && range.max->value.is_negative) low = Negated(*range.max);
    const auto numbers = Magnitudes(low, high, range).Build();
    if (!numbers.has_value()) return std::nullopt;
    parts.push_back(Sequence({Bytes("-"), *numbers}));
  }
  if (parts.empty()) return Nothing();
  return Alternatives(std::move(parts));
}

}  // namespace retroinfer::constraint
