// The values that templates compute with: those of Python that Jinja's sandbox lets through.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "text/jinja/text.h"

namespace retroinfer::jinja {

__extension__ typedef __int128 Int;  // holds all integers of 64 bits; others are refused

class Meter;
class Object;
struct Sequence;
struct Dict;

// Counts bytes against a Meter while it lives.
class Charge {
 public:
  Charge() = default;
  Charge(std::shared_ptr<Meter> meter, size_t bytes);
  Charge(Charge&& other) noexcept;
  Charge& operator=(Charge&&) = delete;
  ~Charge();

 private:
  std::shared_ptr<Meter> meter_;
  size_t bytes_ = 0;
};

// Bytes of the values of one rendering that are alive.
class Meter {
 public:
  explicit Meter(size_t bytes_max) : bytes_max_(bytes_max) {}
  bool HasRoom(size_t bytes) const { return bytes <= bytes_max_ - std::min(bytes_max_, bytes_); }
  size_t bytes_max() const { return bytes_max_; }

 private:
  friend class Charge;
  const size_t bytes_max_;
  size_t bytes_ = 0;
};

struct None {
  bool operator==(const None&) const = default;
};
// What a name, an attribute or an item gives that is not there. Most uses fail with `reason`.
struct Undefined {
  std::shared_ptr<const std::string> reason;
};
struct StringCell {
  Text text;
  Charge charge;
};

// Cheap to copy: strings, sequences and dicts are shared and never change.
class Value {
 public:
  Value() : value_(Undefined{}) {}
  Value(None none) : value_(none) {}                 // NOLINT: a value like any other
  Value(Undefined undefined) : value_(undefined) {}  // NOLINT
  explicit Value(bool truth) : value_(truth) {}
  explicit Value(Int number) : value_(number) {}
  explicit Value(double number) : value_(number) {}
  explicit Value(std::shared_ptr<const StringCell> cell) : value_(std::move(cell)) {}
  explicit Value(std::shared_ptr<const Sequence> cell) : value_(std::move(cell)) {}
  explicit Value(std::shared_ptr<const Dict> cell) : value_(std::move(cell)) {}
  explicit Value(std::shared_ptr<Object> object) : value_(std::move(object)) {}
  // A string that no meter counts: of a template, or of a caller.
  static Value OfText(Text text);
  // An undefined value whose uses fail with `reason`.
  static Value Missing(std::initializer_list<std::string_view> reason);

  bool is_undefined() const { return std::holds_alternative<Undefined>(value_); }
  bool is_none() const { return std::holds_alternative<None>(value_); }
  const bool* AsBool() const { return std::get_if<bool>(&value_); }
  const double* AsFloat() const { return std::get_if<double>(&value_); }
  // Integers, and booleans as 0 and 1.
  std::optional<Int> AsInt() const;
  bool is_int() const { return std::holds_alternative<Int>(value_); }
  // nullptr if the value is of another type.
  const Text* AsText() const;
  const Sequence* AsSequence() const;
  const Dict* AsDict() const;
  Object* AsObject() const;
  std::shared_ptr<const Sequence> SharedSequence() const;

  // The name of Python's type, for errors.
  std::string TypeName() const;
  // The error of using an undefined value.
  //
  // REQUIRES: is_undefined().
  absl::Status UndefinedError() const;
  // Levels of sequences and dicts, 0 for others.
  int depth() const;
  // Whether this is an object, or a sequence or dict with one in it.
  bool holds_objects() const;

 private:
  std::variant<Undefined, None, bool, Int, double, std::shared_ptr<const StringCell>,
               std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>,
               std::shared_ptr<Object>>
      value_;
};

using Values = std::vector<Value>;

struct Sequence {
  enum class Kind {
    kList,
    kTuple,
    kRange,
    kKeys,  // views of a dict: have a length, but no items by index
    kValues,
    kItems,
    kGenerator,  // gives its items once; always true
  };
  Kind kind;
  Values items;
  int depth;
  bool holds_objects;
  Charge charge;
  mutable bool consumed = false;  // of a kGenerator
  absl::Status failure = {};      // of a kGenerator: what running over it comes to
};

struct Dict {
  using Entry = std::pair<Value, Value>;
  std::vector<Entry> entries;                        // in the order in which they were written
  absl::flat_hash_map<std::string, size_t> strings;  // the index of each entry with a string as key
  int depth;
  bool holds_objects;
  Charge charge;

  // The value of a string key; nullptr if there is none.
  const Value* Find(std::string_view key) const;
};

// What a call gives: values in order, and by name.
struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Workspace;

// A value with behaviour: functions, methods, macros, namespaces, loops.
class Object {
 public:
  virtual ~Object() = default;
  // As Python names the type, for errors.
  virtual std::string_view type_name() const = 0;
  virtual bool is_callable() const { return false; }
  virtual absl::StatusOr<Value> Call(Workspace& workspace, const Arguments& arguments);
  // Nothing if there is no such attribute.
  virtual absl::StatusOr<std::optional<Value>> Attribute(Workspace& workspace,
                                                         std::string_view name);
  virtual absl::Status SetAttribute(std::string_view name, const Value& value);
  virtual int depth() const { return 1; }
};

}  // namespace retroinfer::jinja
