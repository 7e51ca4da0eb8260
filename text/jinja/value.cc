#include "text/jinja/value.h"

#include "text/jinja/errors.h"

namespace retroinfer::jinja {

Charge::Charge(std::shared_ptr<Meter> meter, size_t bytes)
    : meter_(std::move(meter)), bytes_(bytes) {
  if (meter_ != nullptr) meter_->bytes_ += bytes_;
}

Charge::Charge(Charge&& other) noexcept : meter_(std::move(other.meter_)), bytes_(other.bytes_) {
  other.meter_ = nullptr;
}

Charge::~Charge() {
  if (meter_ != nullptr) meter_->bytes_ -= bytes_;
}

Value Value::OfText(Text text) {
  return Value(std::make_shared<const StringCell>(StringCell{std::move(text), Charge()}));
}

Value Value::Missing(std::initializer_list<std::string_view> reason) {
  return Undefined{std::make_shared<const std::string>(Concat(reason))};
}

std::optional<Int> Value::AsInt() const {
  if (const Int* const number = std::get_if<Int>(&value_)) return *number;
  if (const bool* const truth = AsBool()) return Int{*truth ? 1 : 0};
  return std::nullopt;
}

const Text* Value::AsText() const {
  const auto* const cell = std::get_if<std::shared_ptr<const StringCell>>(&value_);
  return cell == nullptr ? nullptr : &(*cell)->text;
}

const Sequence* Value::AsSequence() const {
  const auto* const cell = std::get_if<std::shared_ptr<const Sequence>>(&value_);
  return cell == nullptr ? nullptr : cell->get();
}

std::shared_ptr<const Sequence> Value::SharedSequence() const {
  return std::get<std::shared_ptr<const Sequence>>(value_);
}

const Dict* Value::AsDict() const {
  const auto* const cell = std::get_if<std::shared_ptr<const Dict>>(&value_);
  return cell == nullptr ? nullptr : cell->get();
}

Object* Value::AsObject() const {
  const auto* const object = std::get_if<std::shared_ptr<Object>>(&value_);
  return object == nullptr ? nullptr : object->get();
}

std::string Value::TypeName() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (AsBool() != nullptr) return "bool";
  if (is_int()) return "int";
  if (AsFloat() != nullptr) return "float";
  if (AsText() != nullptr) return "str";
  if (AsDict() != nullptr) return "dict";
  if (const Sequence* const sequence = AsSequence()) {
    switch (sequence->kind) {
      case Sequence::Kind::kList:
        return "list";
      case Sequence::Kind::kTuple:
        return "tuple";
      case Sequence::Kind::kRange:
        return "range";
      case Sequence::Kind::kKeys:
        return "dict_keys";
      case Sequence::Kind::kValues:
        return "dict_values";
      case Sequence::Kind::kItems:
        return "dict_items";
      case Sequence::Kind::kGenerator:
        return "generator";
    }
  }
  return std::string(AsObject()->type_name());
}

absl::Status Value::UndefinedError() const {
  const Undefined& undefined = std::get<Undefined>(value_);
  if (undefined.reason == nullptr) return Error({"a value is undefined"});
  return Error({*undefined.reason});
}

int Value::depth() const {
  if (const Sequence* const sequence = AsSequence()) return sequence->depth;
  if (const Dict* const dict = AsDict()) return dict->depth;
  if (const Object* const object = AsObject()) return object->depth();
  return 0;
}

bool Value::holds_objects() const {
  if (const Sequence* const sequence = AsSequence()) return sequence->holds_objects;
  if (const Dict* const dict = AsDict()) return dict->holds_objects;
  return AsObject() != nullptr;
}

const Value* Dict::Find(std::string_view key) const {
  const auto found = strings.find(absl::string_view(key.data(), key.size()));
  return found == strings.end() ? nullptr : &entries[found->second].second;
}

absl::StatusOr<Value> Object::Call(Workspace&, const Arguments&) {
  return Error({"'", type_name(), "' object is not callable"});
}

absl::StatusOr<std::optional<Value>> Object::Attribute(Workspace&, std::string_view) {
  return std::nullopt;
}

absl::Status Object::SetAttribute(std::string_view, const Value&) {
  return Error({"cannot assign attribute on non-namespace object"});
}

}  // namespace retroinfer::jinja
