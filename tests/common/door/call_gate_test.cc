#include "common/door/call_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/status/error_reason.h"

namespace retroinfer::common {
namespace {

using ::testing::HasSubstr;

constexpr char kPath[] = "/package.Service/Method";

std::string Block(const HeaderList& headers) {
  std::string block;
  for (const auto& [name, value] : headers) AppendLiteralHeader(name, value, &block);
  return block;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload = "") {
  std::string out;
  AppendFrame(type, flags, stream, payload, &out);
  return out;
}

std::string Headers(uint32_t stream, bool end_stream, const HeaderList& extra = {},
                    const std::string& path = kPath) {
  HeaderList headers = {{":method", "POST"}, {":path", path}};
  headers.insert(headers.end(), extra.begin(), extra.end());
  return Frame(FrameType::kHeaders, frame_flag::kEndHeaders | (end_stream ? 1 : 0), stream,
               Block(headers));
}

std::string Reset(uint32_t stream) {
  return Frame(FrameType::kRstStream, 0, stream, std::string_view("\0\0\0\x8", 4));
}

struct Seen {
  FrameHeader header;
  std::string payload;
};

// The frames in `bytes`; a last one that is not whole is left out.
std::vector<Seen> Frames(std::string_view bytes) {
  std::vector<Seen> frames;
  while (bytes.size() >= kFrameHeaderBytes) {
    const FrameHeader header = ParseFrameHeader(bytes);
    bytes.remove_prefix(kFrameHeaderBytes);
    if (bytes.size() < header.length) break;
    frames.push_back({header, std::string(bytes.substr(0, header.length))});
    bytes.remove_prefix(header.length);
  }
  return frames;
}

class CallGateTest : public ::testing::Test {
 protected:
  CallGateTest() {
    policy_.on_refused = [this](const absl::Status& status) { refused_ = status; };
  }

  void Open(const GateBudget::Limits& limits = {}) {
    waiting_.clear();
    gate_.reset();
    budget_ = std::make_unique<GateBudget>(limits);
    gate_ = std::make_unique<CallGate>(&policy_, budget_.get(), now_);
    EXPECT_TRUE(Client(std::string(kHttp2Preface) + Frame(FrameType::kSettings, 0, 0)).ok());
    EXPECT_TRUE(Server(Frame(FrameType::kSettings, 0, 0)).ok());
    to_server_.clear();
    to_client_.clear();
  }
  // Hands over what waits and `bytes`.
  absl::Status Client(const std::string& bytes = "") {
    waiting_ += bytes;
    const absl::StatusOr<size_t> taken = gate_->FromClient(waiting_, now_, &to_server_);
    if (!taken.ok()) return taken.status();
    waiting_.erase(0, *taken);
    gate_->TakeAnswers(&to_client_);
    return absl::OkStatus();
  }
  absl::Status Server(const std::string& bytes) {
    return gate_->FromServer(bytes, now_, &to_client_, &to_server_);
  }
  // What gRPC was given since the last call.
  std::vector<Seen> ToServer() { return Frames(std::exchange(to_server_, "")); }
  std::vector<Seen> ToClient() { return Frames(std::exchange(to_client_, "")); }
  void Answer(uint32_t stream) {
    EXPECT_TRUE(Server(Frame(FrameType::kHeaders, frame_flag::kEndHeaders, stream)).ok());
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  CallGate::Policy policy_;
  absl::Status refused_;
  std::unique_ptr<GateBudget> budget_;
  std::unique_ptr<CallGate> gate_;
  std::string waiting_;
  std::string to_server_;
  std::string to_client_;
};

TEST_F(CallGateTest, ACallAndItsAnswerPass) {
  Open();
  ASSERT_TRUE(Client(Headers(1, false) + Frame(FrameType::kData, 1, 1, "request")).ok());
  const std::vector<Seen> frames = ToServer();
  ASSERT_EQ(frames.size(), 2u);
  HeaderDecoder decoder;
  HeaderList headers;
  bool complete = false;
  ASSERT_TRUE(decoder.Decode(frames[0].payload, 1000, &headers, &complete).ok());
  EXPECT_EQ(FindHeader(headers, ":path"), kPath);
  EXPECT_EQ(frames[0].header.flags, frame_flag::kEndHeaders);
  EXPECT_EQ(frames[1].payload, "request");
  EXPECT_EQ(frames[1].header.flags, frame_flag::kEndStream);
  EXPECT_EQ(budget_->open_calls, 1);
  const std::string answer =
      Frame(FrameType::kHeaders, 4, 1, "x") + Frame(FrameType::kData, 1, 1, "y");
  ASSERT_TRUE(Server(answer).ok());
  EXPECT_EQ(to_client_, answer);
  EXPECT_EQ(budget_->open_calls, 0);
  EXPECT_EQ(budget_->unanswered, 0);
  EXPECT_EQ(budget_->request_bytes, 0);
}

TEST_F(CallGateTest, RequestsToServicesOfGrpcAreSmallAndNotCompressed) {
  const std::string data = Frame(FrameType::kData, 0, 1, std::string(16384, 'x'));
  for (const std::string path : {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                 "/grpc.health.v1.Health/Check"}) {
    Open();
    ASSERT_TRUE(Client(Headers(1, false, {}, path) + data + data + data + data).ok());
    EXPECT_EQ(ToServer().size(), 5u);
    Answer(1);  // a stream of requests may have been answered before
    ToClient();
    ASSERT_TRUE(Client(Frame(FrameType::kData, 0, 1, "x") + data).ok());
    const std::vector<Seen> frames = ToServer();
    ASSERT_EQ(frames.size(), 1u);
    EXPECT_EQ(frames[0].header.type, FrameType::kRstStream);
    EXPECT_EQ(ReasonOf(refused_).reason, "REQUEST_TOO_LARGE") << refused_;
    EXPECT_THAT(to_client_, HasSubstr("65536 bytes"));
    EXPECT_EQ(budget_->open_calls, 0);
    EXPECT_EQ(budget_->request_bytes, 0);

    ASSERT_TRUE(Client(Headers(3, false, {{"grpc-encoding", "identity"}}, path)).ok());
    EXPECT_EQ(ToServer().size(), 1u);
    ASSERT_TRUE(Client(Headers(5, false, {{"grpc-encoding", "gzip"}}, path)).ok());
    EXPECT_EQ(ToServer().size(), 0u);
    EXPECT_EQ(refused_.code(), absl::StatusCode::kUnimplemented) << refused_;
  }
  Open();
  ASSERT_TRUE(Client(Headers(1, false, {{"grpc-encoding", "gzip"}}) + data + data).ok());
  EXPECT_EQ(ToServer().size(), 3u);
  ASSERT_TRUE(Client(data + data + data).ok());
  EXPECT_EQ(ToServer().size(), 3u);
}

TEST_F(CallGateTest, BytesMayComeOneByOne) {
  const std::string bytes = Headers(1, true) + Headers(3, true, {{"a", "b"}}) + Reset(3) +
                            Frame(FrameType::kPing, 0, 0, "12345678");
  Open();
  ASSERT_TRUE(Client(bytes).ok());
  const std::string whole = to_server_;
  Open();
  for (const char byte : bytes) ASSERT_TRUE(Client(std::string(1, byte)).ok());
  EXPECT_EQ(to_server_, whole);
  EXPECT_FALSE(gate_->waiting_since().has_value());
}

TEST_F(CallGateTest, ACallWithoutTheKeyNeverReachesTheServer) {
  policy_.admit = [](const CallHead& call) {
    EXPECT_EQ(call.path, kPath);
    return call.authorization == "Bearer key"
               ? absl::OkStatus()
               : WithReason(absl::UnauthenticatedError("no"), "API_KEY_REQUIRED");
  };
  Open();
  const std::string data = Frame(FrameType::kData, 0, 1, std::string(9000, 'x'));
  ASSERT_TRUE(Client(Headers(1, false) + data + Reset(1) + Reset(99)).ok());
  EXPECT_EQ(to_server_, "");
  EXPECT_EQ(refused_.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(to_client_, HasSubstr("16"));
  const std::vector<Seen> answers = ToClient();
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].header.type, FrameType::kHeaders);
  EXPECT_EQ(answers[1].header.type, FrameType::kRstStream);
  EXPECT_EQ(answers[2].header.type, FrameType::kWindowUpdate);  // for what was dropped
  EXPECT_EQ(ReadBigEndian32(answers[2].payload), 9000u);
  ASSERT_TRUE(Client(Headers(3, true, {{"authorization", "Bearer key"}})).ok());
  EXPECT_EQ(ToServer().size(), 1u);
  EXPECT_EQ(budget_->open_calls, 1);
}

TEST_F(CallGateTest, AConnectionWithManyRefusedCallsIsReadSlowly) {
  policy_.admit = [](const CallHead&) { return absl::UnauthenticatedError("no"); };
  GateBudget::Limits limits;
  limits.refused_calls_per_second = 10;
  Open(limits);
  std::string bytes;
  for (uint32_t i = 0; i < 100; ++i) bytes += Headers(2 * i + 1, true);
  ASSERT_TRUE(Client(bytes).ok());
  EXPECT_EQ(ToClient().size(), 10u);
  now_ = gate_->paused_until();
  ASSERT_TRUE(Client().ok());
  EXPECT_EQ(ToClient().size(), 1u);
}

TEST_F(CallGateTest, AnAnswerOfTheGateWaitsForTheEndOfAFrame) {
  policy_.admit = [](const CallHead&) { return absl::UnauthenticatedError("no"); };
  Open();
  const std::string data = Frame(FrameType::kData, 0, 1, "abcdef");
  ASSERT_TRUE(Server(data.substr(0, 11)).ok());
  ASSERT_TRUE(Client(Headers(1, true)).ok());
  EXPECT_EQ(to_client_, data.substr(0, 11));
  ASSERT_TRUE(Server(data.substr(11)).ok());
  gate_->TakeAnswers(&to_client_);
  const std::vector<Seen> frames = ToClient();
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].payload, "abcdef");
  EXPECT_EQ(frames[1].header.type, FrameType::kHeaders);
}

TEST_F(CallGateTest, AResetWaitsForTheAnswer) {
  Open();
  ASSERT_TRUE(Client(Headers(1, false) + Headers(3, true) + Reset(1) + Reset(3)).ok());
  std::vector<Seen> frames = ToServer();
  ASSERT_EQ(frames.size(), 3u);  // the first one's request is ended, so that its handler runs
  EXPECT_EQ(frames[2].header.type, FrameType::kData);
  EXPECT_EQ(frames[2].header.flags, frame_flag::kEndStream);
  EXPECT_EQ(budget_->unanswered, 2);
  Answer(3);
  frames = ToServer();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].header.type, FrameType::kRstStream);
  EXPECT_EQ(frames[0].header.stream, 3u);
  EXPECT_EQ(budget_->open_calls, 1);
  ASSERT_TRUE(Server(Frame(FrameType::kHeaders, 5, 1)).ok());  // ends
  EXPECT_EQ(budget_->open_calls, 0);

  ASSERT_TRUE(Client(Headers(5, true)).ok());
  Answer(5);
  ToServer();
  ASSERT_TRUE(Client(Reset(5)).ok());
  EXPECT_EQ(ToServer().size(), 1u);  // at once
  EXPECT_EQ(budget_->lost_calls_total, 2u);
}

TEST_F(CallGateTest, ACancelledCallWithoutAnAnswerEndsInTheEnd) {
  Open();
  ASSERT_TRUE(Client(Headers(1, true) + Headers(3, false) + Reset(1)).ok());
  ToServer();
  gate_->EndStalledCalls(now_, now_, now_, &to_server_);
  EXPECT_EQ(to_server_, "");
  now_ += absl::Seconds(1);
  gate_->EndStalledCalls(now_, now_, now_, &to_server_);
  EXPECT_EQ(ToServer().size(), 2u);
  gate_->TakeAnswers(&to_client_);
  EXPECT_THAT(to_client_, HasSubstr("did not come in time"));
  EXPECT_EQ(budget_->open_calls, 0);
}

TEST_F(CallGateTest, LostCallsAreLimitedByRate) {
  GateBudget::Limits limits;
  limits.lost_calls_burst_of_connection = 2;
  limits.lost_calls_per_second = 10;
  limits.unanswered_calls_at_first = 1000;
  Open(limits);
  std::string bytes;
  for (uint32_t i = 0; i < 20; ++i) bytes += Headers(2 * i + 1, false) + Reset(2 * i + 1);
  ASSERT_TRUE(Client(bytes).ok());
  EXPECT_EQ(budget_->lost_calls_total, 3u);
  EXPECT_FALSE(waiting_.empty());
  EXPECT_GT(gate_->paused_until(), now_);
  EXPECT_LE(gate_->paused_until(), now_ + absl::Milliseconds(101));
  now_ += absl::Milliseconds(101);
  ASSERT_TRUE(Client().ok());
  EXPECT_EQ(budget_->lost_calls_total, 4u);
  for (int i = 0; i < 16; ++i) {
    now_ += absl::Milliseconds(101);
    ASSERT_TRUE(Client().ok());
  }
  EXPECT_TRUE(waiting_.empty());
}

// All that a door does waits for the gate to return.
TEST_F(CallGateTest, WhoeverIsOutOfTokensWaitsForALaterTimeAtAnyMoment) {
  GateBudget::Limits limits;
  limits.lost_calls_burst_of_connection = 1;
  limits.lost_calls_per_second = 999.9;
  limits.unanswered_calls_at_first = 100'000;
  limits.open_calls_per_connection_max = 100'000;
  limits.open_calls_max = 100'000;
  limits.strikes_max = 100'000;
  limits.frames_per_second = 1e9;
  Open(limits);
  std::minstd_rand random(1);
  uint32_t stream = 1;
  for (int i = 0; i < 100'000; ++i) {
    now_ += absl::Nanoseconds(std::uniform_int_distribution<int>(0, 100'000)(random));
    ASSERT_TRUE(Client(Headers(stream, false) + Reset(stream)).ok());
    if (gate_->paused_until() > now_) {
      now_ = gate_->paused_until();
      ASSERT_TRUE(Client().ok());
      ASSERT_LE(gate_->paused_until(), now_) << "there was no token when it was promised";
    }
    Answer(stream);
    stream += 2;
    ToServer();
    ToClient();
  }
  EXPECT_GT(budget_->lost_calls_total, 1000u);
}

TEST_F(CallGateTest, DeadlinesAndResetsOfTheServerAreLostCallsToo) {
  Open();
  ASSERT_TRUE(Client(Headers(1, true, {{"grpc-timeout", "5m"}}) + Headers(3, true) +
                     Headers(5, true, {{"grpc-timeout", "5m"}}))
                  .ok());
  ASSERT_TRUE(Server(Frame(FrameType::kHeaders, 5, 5)).ok());  // in time
  now_ += absl::Milliseconds(5);
  ASSERT_TRUE(Server(Frame(FrameType::kHeaders, 5, 1)).ok());
  ASSERT_TRUE(Server(Reset(3)).ok());
  EXPECT_EQ(budget_->lost_calls_total, 2u);
  EXPECT_EQ(budget_->open_calls, 0);
}

TEST_F(CallGateTest, AConnectionWithTooManyLostCallsIsClosed) {
  GateBudget::Limits limits;
  limits.strikes_max = 20;
  Open(limits);
  absl::Status status;
  uint32_t stream = 1;
  for (; status.ok() && stream < 1000; stream += 2) {
    status = Client(Headers(stream, false) + Reset(stream));
    if (status.ok()) status = Server(Frame(FrameType::kHeaders, frame_flag::kEndHeaders, stream));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LT(stream, 100u);
  ToClient();
  gate_->GoAway(status, &to_client_);
  const std::vector<Seen> frames = ToClient();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].header.type, FrameType::kGoAway);
  EXPECT_EQ(ReadBigEndian32(std::string_view(frames[0].payload).substr(4)),
            http2_error::kEnhanceYourCalm);
}

TEST_F(CallGateTest, ANewConnectionEarnsItsPlacesInTheQueue) {
  Open();
  std::string bytes;
  for (uint32_t i = 0; i < 100; ++i) bytes += Headers(2 * i + 1, true);
  ASSERT_TRUE(Client(bytes).ok());
  EXPECT_EQ(ToServer().size(), 4u);
  Answer(1);
  EXPECT_LE(gate_->paused_until(), now_);  // at once
  ASSERT_TRUE(Client().ok());
  EXPECT_EQ(ToServer().size(), 2u);
  for (const uint32_t stream : {3u, 5u, 7u}) Answer(stream);
  ASSERT_TRUE(Client().ok());
  EXPECT_EQ(ToServer().size(), 6u);
  EXPECT_EQ(budget_->unanswered, 8);
  for (uint32_t stream = 9; stream < 100; stream += 2) {
    Answer(stream);
    ASSERT_TRUE(Client().ok());
  }
  EXPECT_EQ(budget_->unanswered, 32);
}

TEST_F(CallGateTest, AConnectionThatLosesCallsBeginsAnew) {
  Open();
  uint32_t stream = 1;
  for (; stream < 101; stream += 2) {
    ASSERT_TRUE(Client(Headers(stream, true)).ok());
    Answer(stream);
  }
  ASSERT_TRUE(Client(Headers(stream, true) + Reset(stream)).ok());
  EXPECT_EQ(budget_->unanswered, 1);
  std::string bytes;
  for (stream += 2; stream < 201; stream += 2) bytes += Headers(stream, true);
  ASSERT_TRUE(Client(bytes).ok());
  EXPECT_EQ(budget_->unanswered, 4);
}

TEST_F(CallGateTest, CallsThatEndByTheirDeadlineEarnNothing) {
  Open();
  std::string bytes;
  for (uint32_t i = 0; i < 20; ++i) {
    bytes += Headers(2 * i + 1, true, {{"grpc-timeout", "5m"}});
  }
  ASSERT_TRUE(Client(bytes).ok());
  now_ += absl::Milliseconds(5);
  for (const uint32_t stream : {1u, 3u, 5u, 7u}) {
    ASSERT_TRUE(Server(Frame(FrameType::kHeaders, 5, stream)).ok());
  }
  ASSERT_TRUE(Client().ok());
  EXPECT_EQ(budget_->unanswered, 4);
}

TEST_F(CallGateTest, FewCallsWithoutAnAnswerAreLetInAtATime) {
  GateBudget::Limits limits;
  limits.unanswered_calls_at_first = 1000;
  Open(limits);
  const auto first = static_cast<size_t>(budget_->unanswered_max());
  std::string bytes;
  for (uint32_t i = 0; i < 100; ++i) bytes += Headers(2 * i + 1, true);
  ASSERT_TRUE(Client(bytes).ok());
  EXPECT_EQ(ToServer().size(), first);
  Answer(1);
  now_ += absl::Milliseconds(10);
  ASSERT_TRUE(Client().ok());
  EXPECT_EQ(ToServer().size(), 1u);
  budget_->unanswered += 10'000;  // of other connections: one may still come in
  for (uint32_t i = 1; i <= first; ++i) Answer(2 * i + 1);
  now_ += absl::Milliseconds(10);
  ASSERT_TRUE(Client().ok());
  EXPECT_EQ(ToServer().size(), 1u);
  budget_->unanswered -= 10'000;
}

TEST_F(CallGateTest, OpenCallsAreLimited) {
  GateBudget::Limits limits;
  limits.open_calls_max = 2;
  limits.health_watches_max = 1;
  limits.open_calls_per_connection_max = 4;
  Open(limits);
  ASSERT_TRUE(Client(Headers(1, true) + Headers(3, true) + Headers(5, true)).ok());
  EXPECT_EQ(ToServer().size(), 2u);
  EXPECT_EQ(refused_.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused_).reason, "TOO_MANY_CALLS");
  const auto watch = [](uint32_t stream) {
    return Frame(FrameType::kHeaders, 5, stream,
                 Block({{":path", "/grpc.health.v1.Health/Watch"}}));
  };
  ASSERT_TRUE(Client(watch(7) + watch(9)).ok());
  EXPECT_EQ(ToServer().size(), 1u);
  EXPECT_EQ(budget_->open_calls, 2);
  EXPECT_EQ(budget_->health_watches, 1);
  limits.open_calls_per_connection_max = 1;
  Open(limits);
  ASSERT_TRUE(Client(Headers(1, true) + Headers(3, true)).ok());
  const std::vector<Seen> frames = ToClient();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(ReadBigEndian32(frames[0].payload), http2_error::kRefusedStream);
}

TEST_F(CallGateTest, FewCallsMayBeBegunAtATime) {
  GateBudget::Limits limits;
  limits.incomplete_calls_per_connection_max = 2;
  Open(limits);
  ASSERT_TRUE(
      Client(Headers(1, false) + Headers(3, false) + Headers(5, false) + Headers(7, true)).ok());
  EXPECT_EQ(ToServer().size(), 3u);
  ASSERT_EQ(ToClient().size(), 1u);
  ASSERT_TRUE(Client(Frame(FrameType::kData, 1, 1, "x") + Headers(9, false)).ok());
  EXPECT_EQ(ToServer().size(), 2u);
}

TEST_F(CallGateTest, LargeRequestsShareABudget) {
  GateBudget::Limits limits;
  limits.request_bytes_max = 3 << 20;
  Open(limits);
  ASSERT_TRUE(Client(Headers(1, false) + Headers(3, false) + Headers(5, false)).ok());
  const std::string mebibyte = Frame(FrameType::kData, 0, 1, std::string(1 << 20, 'x'));
  std::string other = Frame(FrameType::kData, 0, 3, std::string((1 << 20) + 1, 'x'));
  for (const std::string& bytes : {mebibyte, mebibyte, other}) {
    for (size_t at = 0; at < bytes.size(); at += 16384) {
      ASSERT_TRUE(Client(bytes.substr(at, 16384)).ok());
      to_server_.clear();
    }
  }
  EXPECT_EQ(ReasonOf(refused_).reason, "TOO_MANY_REQUEST_BYTES");
  EXPECT_EQ(budget_->open_calls, 2);
  EXPECT_EQ(budget_->request_bytes, 2 << 20);
  ASSERT_TRUE(Client(Frame(FrameType::kData, 1, 5, "small")).ok());
  EXPECT_EQ(ToServer().back().payload, "small");
}

TEST_F(CallGateTest, LargeMetadataEndsTheCallAlone) {
  Open();
  ASSERT_TRUE(
      Client(Headers(1, true,
                     {{"large", std::string(15'000, 'x')}, {"larger", std::string(1'500, 'x')}}))
          .ok());
  EXPECT_EQ(ReasonOf(refused_).reason, "METADATA_TOO_LARGE");
  EXPECT_TRUE(ToServer().empty());
  ASSERT_TRUE(Client(Headers(3, true)).ok());
  EXPECT_EQ(ToServer().size(), 1u);
  std::string endless = Frame(FrameType::kHeaders, 0, 5, std::string(16384, '\0'));
  for (int i = 0; i < 4; ++i)
    endless += Frame(FrameType::kContinuation, 0, 5, std::string(16384, 0));
  EXPECT_EQ(Client(endless).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CallGateTest, AClientThatLeavesTakesItsCallsAlong) {
  GateBudget::Limits limits;
  limits.lost_calls_burst_of_connection = 1;
  limits.lost_calls_per_second = 1;
  Open(limits);
  ASSERT_TRUE(Client(Headers(1, true) + Headers(3, true) + Headers(5, false) + Headers(7, false) +
                     Headers(9, false))
                  .ok());
  Answer(1);
  ToServer();
  EXPECT_FALSE(gate_->Abandon(now_, &to_server_));
  EXPECT_EQ(budget_->open_calls, 0);
  EXPECT_EQ(budget_->abandoned, 4);
  // 1 is reset, one of the incomplete ones is ended, although the connection has tokens of its own.
  EXPECT_EQ(ToServer().size(), 2u);
  Answer(3);
  EXPECT_EQ(ToServer().size(), 1u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_GT(gate_->paused_until(), now_);
    now_ += absl::Seconds(1);
    EXPECT_FALSE(gate_->Abandon(now_, &to_server_));
  }
  for (const uint32_t stream : {5u, 7u, 9u}) Answer(stream);
  EXPECT_TRUE(gate_->Abandon(now_, &to_server_));
  EXPECT_EQ(budget_->open_calls, 0);
  EXPECT_EQ(budget_->abandoned, 0);
}

TEST_F(CallGateTest, WhatIsNoHttp2IsRefused) {
  const std::string open_block = Frame(FrameType::kHeaders, 0, 1, Block({{"a", "b"}}));
  const std::vector<std::string> bad = {
      Frame(FrameType::kHeaders, 4, 2, Block({{"a", "b"}})),
      Frame(FrameType::kHeaders, 4, 1, "\xff\xff\xff\xff\xff\xff"),
      Frame(FrameType::kHeaders, 4, 1, std::string("\0\5ab", 4)),
      Frame(FrameType::kHeaders, 4 | frame_flag::kPadded, 1, "\x9"),
      Frame(FrameType::kContinuation, 4, 1),
      open_block + Frame(FrameType::kPing, 0, 0, "12345678"),
      open_block + Frame(FrameType::kContinuation, 4, 3),
      Frame(FrameType::kData, 0, 0, "x"),
      Frame(FrameType::kData, frame_flag::kPadded, 1, "x"),
      Frame(FrameType::kPushPromise, 4, 1, "1234"),
      Frame(FrameType::kRstStream, 0, 1, "123"),
      Frame(FrameType::kPing, 0, 0, "1234567"),
      Frame(FrameType::kWindowUpdate, 0, 0, "12345"),
      Frame(FrameType::kSettings, 0, 0, std::string(16385, 'x'))};
  for (size_t i = 0; i < bad.size(); ++i) {
    Open();
    EXPECT_EQ(Client(bad[i]).code(), absl::StatusCode::kInvalidArgument) << i;
  }
  budget_ = std::make_unique<GateBudget>(GateBudget::Limits());
  for (const char* greeting : {"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\x20"}) {
    CallGate gate(&policy_, budget_.get(), now_);
    EXPECT_EQ(gate.FromClient(greeting, now_, &to_server_).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(CallGateTest, RandomFramesLeaveNothingBehind) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto below = [&random](uint32_t limit) { return random() % limit; };
  for (int round = 0; round < 300; ++round) {
    Open();
    for (int i = 0; i < 60; ++i) {
      const auto stream = static_cast<uint32_t>(below(40));
      std::string bytes;
      switch (below(5)) {
        case 0:
          bytes = Headers(stream | 1, below(2) == 0);
          break;
        case 1:
          bytes = Reset(stream);
          break;
        default:
          bytes = Frame(static_cast<FrameType>(below(11)), static_cast<uint8_t>(below(64)), stream,
                        std::string(below(3) * 4, static_cast<char>(below(256))));
          break;
      }
      if (!Client(bytes).ok()) break;
      (void)Server(Frame(static_cast<FrameType>(below(4)), static_cast<uint8_t>(below(8)), stream));
      now_ += absl::Milliseconds(below(50));
      gate_->EndStalledCalls(now_ - absl::Milliseconds(100), now_ - absl::Milliseconds(100), now_,
                             &to_server_);
    }
    waiting_.clear();
    gate_.reset();
    ASSERT_EQ(budget_->open_calls, 0);
    ASSERT_EQ(budget_->unanswered, 0);
    ASSERT_EQ(budget_->health_watches, 0);
    ASSERT_EQ(budget_->request_bytes, 0);
  }
}

}  // namespace
}  // namespace retroinfer::common
