// Inputs of fuzzers that are calls with messages: read, written, and changed field by field, so
// that most of what is tried has a meaning.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/common.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace retroinfer::fuzz {

// OFFSET  SIZE  DESCRIPTION, of each call in an input
//      0     1  which message it is: an index into the fuzzer's list, modulo its length
//      1     2  bytes of the message, little endian; at the end of the input as many as there are
//      3        the message as protobuf writes it, or anything
struct Call {
  uint8_t kind;
  std::string bytes;
};

inline std::vector<Call> ReadCalls(std::string_view input) {
  std::vector<Call> calls;
  while (input.size() >= 3) {
    const size_t size = static_cast<uint8_t>(input[1]) | static_cast<uint8_t>(input[2]) << 8;
    calls.push_back({static_cast<uint8_t>(input[0]), std::string(input.substr(3, size))});
    input.remove_prefix(std::min(input.size(), 3 + size));
  }
  return calls;
}

inline std::string WriteCalls(const std::vector<Call>& calls) {
  std::string input;
  for (const Call& call : calls) {
    const size_t size = std::min<size_t>(call.bytes.size(), 0xffff);
    input.push_back(static_cast<char>(call.kind));
    input.push_back(static_cast<char>(size & 0xff));
    input.push_back(static_cast<char>(size >> 8));
    input.append(call.bytes, 0, size);
  }
  return input;
}

class MessageMutator {
 public:
  using Message = google::protobuf::Message;
  using Field = google::protobuf::FieldDescriptor;
  explicit MessageMutator(unsigned seed) : random_(seed) {}

  size_t Below(size_t count) { return random_() % count; }

  // Changes one field of the message or of one within it.
  void Mutate(Message* message, int depth = 0) {
    const google::protobuf::Descriptor& type = *message->GetDescriptor();
    if (type.field_count() == 0) return;
    const Field* const field = type.field(static_cast<int>(Below(type.field_count())));
    const google::protobuf::Reflection& reflection = *message->GetReflection();
    if (Below(8) == 0) return reflection.ClearField(message, field);
    if (field->cpp_type() == Field::CPPTYPE_MESSAGE) {
      if (depth < 6) Mutate(Inner(message, field), depth + 1);
      return;
    }
    const int count = field->is_repeated() ? reflection.FieldSize(*message, field) : 0;
    if (!field->is_repeated()) return Set(message, field, -1);
    if (count == 0 || Below(2) == 0) {
      const size_t many = Below(16) == 0 ? Below(2000) : 1;
      for (size_t i = 0; i < many; ++i) Add(message, field);
    } else {
      Set(message, field, static_cast<int>(Below(static_cast<size_t>(count))));
    }
  }

 private:
  Message* Inner(Message* message, const Field* field) {
    const google::protobuf::Reflection& reflection = *message->GetReflection();
    if (!field->is_repeated()) return reflection.MutableMessage(message, field);
    const int count = reflection.FieldSize(*message, field);
    if (count > 0 && Below(4) == 0) reflection.RemoveLast(message, field);
    if (count < 2 || Below(4) == 0) return reflection.AddMessage(message, field);
    return reflection.MutableRepeatedMessage(
        message, field, static_cast<int>(Below(static_cast<size_t>(count - 1))));
  }
  int64_t Integer() {
    static constexpr int64_t kValues[] = {-1,
                                          0,
                                          1,
                                          2,
                                          3,
                                          4,
                                          16,
                                          64,
                                          127,
                                          128,
                                          255,
                                          256,
                                          1024,
                                          4096,
                                          std::numeric_limits<int32_t>::max(),
                                          std::numeric_limits<int32_t>::min(),
                                          std::numeric_limits<uint32_t>::max(),
                                          std::numeric_limits<int64_t>::max(),
                                          std::numeric_limits<int64_t>::min()};
    if (Below(4) == 0) return static_cast<int64_t>(random_());
    return kValues[Below(std::size(kValues))];
  }
  double Number() {
    static constexpr double kValues[] = {0, 1, -1, 0.5, 1e-300, 1e38, 1e300, -0.0};
    if (Below(8) == 0) return std::numeric_limits<double>::quiet_NaN();
    if (Below(8) == 0) return std::numeric_limits<double>::infinity();
    return kValues[Below(std::size(kValues))];
  }
  std::string Text(std::string text, bool utf8) {
    static constexpr std::string_view kPieces[] = {"a",         "user", "system",   "<|im_start|>",
                                                   "{\"a\":1}", "[{}]", "\xc3\xa9", "\xe4\xb8\x96",
                                                   "\n",        "T"};
    if (Below(2) == 0) text = kPieces[Below(std::size(kPieces))];
    if (Below(4) == 0) text.append(kPieces[Below(std::size(kPieces))]);
    if (Below(32) == 0) text.append(Below(70'000), 'x');
    if (utf8 && Below(8) != 0) return text;
    text.resize(text.size() + 16);
    text.resize(
        LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), text.size() - 16, text.size()));
    return text;
  }
  // Of a repeated field its element `index`.
  void Set(Message* message, const Field* field, int index) {
    const google::protobuf::Reflection& r = *message->GetReflection();
    const bool many = index >= 0;
    switch (field->cpp_type()) {
      case Field::CPPTYPE_INT32: {
        const auto value = static_cast<int32_t>(Integer());
        return many ? r.SetRepeatedInt32(message, field, index, value)
                    : r.SetInt32(message, field, value);
      }
      case Field::CPPTYPE_INT64: {
        const int64_t value = Integer();
        return many ? r.SetRepeatedInt64(message, field, index, value)
                    : r.SetInt64(message, field, value);
      }
      case Field::CPPTYPE_UINT32: {
        const auto value = static_cast<uint32_t>(Integer());
        return many ? r.SetRepeatedUInt32(message, field, index, value)
                    : r.SetUInt32(message, field, value);
      }
      case Field::CPPTYPE_UINT64: {
        const auto value = static_cast<uint64_t>(Integer());
        return many ? r.SetRepeatedUInt64(message, field, index, value)
                    : r.SetUInt64(message, field, value);
      }
      case Field::CPPTYPE_FLOAT: {
        const auto value = static_cast<float>(Number());
        return many ? r.SetRepeatedFloat(message, field, index, value)
                    : r.SetFloat(message, field, value);
      }
      case Field::CPPTYPE_DOUBLE: {
        const double value = Number();
        return many ? r.SetRepeatedDouble(message, field, index, value)
                    : r.SetDouble(message, field, value);
      }
      case Field::CPPTYPE_BOOL: {
        const bool value = Below(2) == 0;
        return many ? r.SetRepeatedBool(message, field, index, value)
                    : r.SetBool(message, field, value);
      }
      case Field::CPPTYPE_ENUM: {
        const int value = static_cast<int>(Below(6));
        return many ? r.SetRepeatedEnumValue(message, field, index, value)
                    : r.SetEnumValue(message, field, value);
      }
      case Field::CPPTYPE_STRING: {
        const bool utf8 = field->type() == Field::TYPE_STRING;
        if (many) {
          return r.SetRepeatedString(message, field, index,
                                     Text(r.GetRepeatedString(*message, field, index), utf8));
        }
        return r.SetString(message, field, Text(r.GetString(*message, field), utf8));
      }
      case Field::CPPTYPE_MESSAGE:
        return;
    }
  }
  void Add(Message* message, const Field* field) {
    const google::protobuf::Reflection& r = *message->GetReflection();
    switch (field->cpp_type()) {
      case Field::CPPTYPE_INT32:
        r.AddInt32(message, field, 0);
        break;
      case Field::CPPTYPE_INT64:
        r.AddInt64(message, field, 0);
        break;
      case Field::CPPTYPE_UINT32:
        r.AddUInt32(message, field, 0);
        break;
      case Field::CPPTYPE_UINT64:
        r.AddUInt64(message, field, 0);
        break;
      case Field::CPPTYPE_FLOAT:
        r.AddFloat(message, field, 0);
        break;
      case Field::CPPTYPE_DOUBLE:
        r.AddDouble(message, field, 0);
        break;
      case Field::CPPTYPE_BOOL:
        r.AddBool(message, field, false);
        break;
      case Field::CPPTYPE_ENUM:
        r.AddEnumValue(message, field, 0);
        break;
      case Field::CPPTYPE_STRING:
        r.AddString(message, field, "");
        break;
      case Field::CPPTYPE_MESSAGE:
        return;
    }
    Set(message, field, r.FieldSize(*message, field) - 1);
  }

  std::mt19937_64 random_;
};

// Strings that are no UTF-8 are part of what is tried; protobuf would write a line about each.
inline void SilenceProtobuf() {
#if GOOGLE_PROTOBUF_VERSION < 4022000  // later it logs with absl
  google::protobuf::SetLogHandler(nullptr);
#endif
}

// For LLVMFuzzerCustomMutator. `types`: an empty message of each kind.
inline size_t MutateCalls(uint8_t* data, size_t size, size_t max_size, unsigned seed,
                          std::span<const google::protobuf::Message* const> types) {
  MessageMutator mutator(seed);
  if (mutator.Below(8) == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::vector<Call> calls = ReadCalls({reinterpret_cast<const char*>(data), size});
  if (calls.empty() || (calls.size() < 40 && mutator.Below(6) == 0)) {
    calls.insert(calls.begin() + static_cast<ptrdiff_t>(mutator.Below(calls.size() + 1)),
                 {static_cast<uint8_t>(mutator.Below(types.size())), ""});
  } else if (mutator.Below(12) == 0) {
    calls.erase(calls.begin() + static_cast<ptrdiff_t>(mutator.Below(calls.size())));
  } else if (calls.size() < 40 && mutator.Below(8) == 0) {
    const Call again = calls[mutator.Below(calls.size())];
    calls.insert(calls.begin() + static_cast<ptrdiff_t>(mutator.Below(calls.size() + 1)), again);
  }
  for (size_t changes = 1 + mutator.Below(4); changes > 0 && !calls.empty(); --changes) {
    Call& call = calls[mutator.Below(calls.size())];
    const std::unique_ptr<google::protobuf::Message> message(
        types[call.kind % types.size()]->New());
    (void)message->ParsePartialFromString(call.bytes);
    mutator.Mutate(message.get());
    call.bytes = message->SerializePartialAsString();
  }
  const std::string changed = WriteCalls(calls);
  if (changed.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, changed.data(), changed.size());
  return changed.size();
}

}  // namespace retroinfer::fuzz
