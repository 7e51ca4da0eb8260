#include "http_gateway/http/request_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer::gateway {
namespace {

namespace http = boost::beast::http;

absl::Status Bad(const std::string& message, std::string_view reason = "BAD_REQUEST") {
  return common::WithReason(absl::InvalidArgumentError(message), reason);
}

// Like Beast's string_body, but takes no memory before the bytes are there.
struct GrowingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool isRequest, class Fields>
    reader(http::header<isRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>&, boost::beast::error_code& error) {
      error = {};
    }
    template <class ConstBufferSequence>
    size_t put(const ConstBufferSequence& buffers, boost::beast::error_code& error) {
      error = {};
      size_t bytes = 0;
      for (const auto buffer : boost::beast::buffers_range_ref(buffers)) {
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
        bytes += buffer.size();
      }
      return bytes;
    }
    void finish(boost::beast::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

using Parser = http::request_parser<GrowingBody>;

constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kLastChunk = "0\r\n\r\n";

std::string Text(boost::beast::string_view text) { return {text.data(), text.size()}; }

absl::Status Translate(const boost::beast::error_code& error, const RequestParser::Limits& limits) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return Bad(
        absl::StrCat("the head of the request has more than ", limits.head_bytes_max, " bytes"),
        "HEADERS_TOO_LARGE");
  }
  if (error == http::error::body_limit) {
    return Bad(absl::StrCat("the body has more than ", limits.body_bytes_max, " bytes"),
               "BODY_TOO_LARGE");
  }
  return Bad(absl::StrCat("this is no HTTP/1.1 request: ", error.message()));
}

// Whether the line before a chunk, or all lines from the last one's on, begin `rest`. Behind the
// data of a chunk comes the end of its line first.
bool ChunkHeadIsWhole(std::string_view rest) {
  if (rest.substr(0, 2) == "\r\n") rest.remove_prefix(2);
  const size_t end = rest.find("\r\n");
  if (end == std::string_view::npos) return false;
  const size_t zeros = rest.find_first_not_of('0');
  const bool is_last = zeros > 0 && !absl::ascii_isxdigit(static_cast<unsigned char>(rest[zeros]));
  return !is_last || rest.find(kHeadEnd, end) != std::string_view::npos;
}

// Whether the lengths that the head gives have one meaning.
absl::Status CheckFraming(const Parser::value_type& message) {
  size_t lengths = 0, encodings = 0, hosts = 0;
  std::string encoding;
  for (const auto& field : message) {
    if (field.name() == http::field::content_length) {
      ++lengths;
      // Beast takes "3, 3" for 3.
      for (const char c : field.value()) {
        if (!absl::ascii_isdigit(static_cast<unsigned char>(c)))
          return Bad("Content-Length is no number");
      }
    }
    if (field.name() == http::field::host) ++hosts;
    if (field.name() == http::field::transfer_encoding) {
      ++encodings;
      encoding = Text(field.value());
    }
  }
  if (lengths > 1) return Bad("Content-Length is there twice");
  if (encodings > 1) return Bad("Transfer-Encoding is there twice");
  if (encodings == 1 && lengths == 1)
    return Bad("Content-Length and Transfer-Encoding exclude each other");
  if (encodings == 1 && (!absl::EqualsIgnoreCase(encoding, "chunked") || message.version() < 11)) {
    return Bad("of transfer encodings only chunked is offered");
  }
  if (hosts > 1 || (hosts == 0 && message.version() >= 11)) {
    return Bad("exactly one Host is needed");
  }
  return absl::OkStatus();
}

}  // namespace

struct RequestParser::Impl {
  Parser parser;
};

RequestParser::RequestParser(const Limits& limits) : limits_(limits) { Begin(); }
RequestParser::~RequestParser() = default;

void RequestParser::Begin() {
  impl_ = std::make_unique<Impl>();
  impl_->parser.header_limit(static_cast<uint32_t>(limits_.head_bytes_max));
  impl_->parser.body_limit(limits_.body_bytes_max);
  request_ = {};
  searched_ = 0;
  has_begun_ = head_done_ = false;
}

bool RequestParser::done() const { return impl_->parser.is_done(); }
size_t RequestParser::body_bytes() const { return impl_->parser.get().body().size(); }

absl::StatusOr<size_t> RequestParser::Put(std::string_view data) {
  size_t skipped = 0;
  if (!has_begun_) {  // empty lines between requests
    while (data.substr(skipped, 2) == "\r\n") skipped += 2;
    data.remove_prefix(skipped);
    if (data.empty() || data == "\r") return skipped;
    has_begun_ = true;
    if (!absl::ascii_isgraph(static_cast<unsigned char>(data.front()))) {
      return Bad("this is no HTTP/1.1 request");  // a TLS handshake, perhaps
    }
  }
  if (!head_done_) {
    // The parser would read the lines that are there, and what is looked at in the bytes below
    // would depend on how a stranger cuts them.
    const size_t end = data.find(kHeadEnd, searched_);
    const size_t bytes = end == std::string_view::npos ? data.size() : end + kHeadEnd.size();
    if (bytes > limits_.head_bytes_max) return Translate(http::error::header_limit, limits_);
    if (end == std::string_view::npos) {
      searched_ = data.size() - std::min(data.size(), kHeadEnd.size() - 1);
      return skipped;
    }
    data = data.substr(0, bytes);
  }
  if (head_done_) {
    ASSIGN_OR_RETURN(const size_t used, PutBody(data));
    return skipped + used;
  }
  boost::beast::error_code error;
  const size_t used = impl_->parser.put(boost::asio::buffer(data.data(), data.size()), error);
  if (error && error != http::error::need_more) return Translate(error, limits_);
  // The head is there as a whole: what Beast would wait for, in a first line that is too short,
  // does not come, and what comes instead would pile up.
  if (!impl_->parser.is_header_done()) return Bad("this is no HTTP/1.1 request: it ends too soon");
  RETURN_IF_ERROR(ReadHead(data.substr(0, used)));
  return skipped + used;
}

absl::StatusOr<size_t> RequestParser::PutBody(std::string_view data) {
  Parser& parser = impl_->parser;
  size_t taken = 0;
  while (!parser.is_done()) {
    const std::string_view rest = data.substr(taken);
    // So many bytes follow wherever a chunked body stands; Beast's checks abort a debug build whose
    // last chunk comes in smaller pieces.
    if (rest.size() < (parser.chunked() ? kLastChunk.size() : 1)) break;
    boost::beast::error_code error;
    const size_t used = parser.put(boost::asio::buffer(rest.data(), rest.size()), error);
    taken += used;
    if (error == http::error::need_more) {
      // Beast looks for the end of a quoted value of an extension beyond the line, and counts the
      // chunk against the limit once more whenever bytes have come.
      if (parser.chunked() && ChunkHeadIsWhole(rest.substr(used))) {
        return Bad("the extension of a chunk goes on behind its line");
      }
      // Of the line before a chunk.
      if (rest.size() - used > limits_.head_bytes_max) {
        return Translate(http::error::header_limit, limits_);
      }
      break;
    }
    if (error) return Translate(error, limits_);
  }
  return taken;
}

absl::Status RequestParser::ReadHead(std::string_view raw) {
  const auto& message = impl_->parser.get();
  if (raw.find("\r\n ") != std::string_view::npos || raw.find("\r\n\t") != std::string_view::npos) {
    return Bad("a header goes on in the next line");
  }
  if (message.version() != 11 && message.version() != 10) {
    return Bad("the version must be HTTP/1.1 or HTTP/1.0");
  }
  RETURN_IF_ERROR(CheckFraming(message));
  std::string target = Text(message.target());
  for (const char* const scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(target, scheme)) continue;
    const size_t slash = target.find('/', std::string_view(scheme).size());
    target = slash == std::string::npos ? "/" : target.substr(slash);
  }
  if (target.empty() || (target.front() != '/' && target != "*")) {
    return Bad("the target of the request must be a path");
  }
  const size_t question = target.find('?');
  request_.method = Text(message.method_string());
  request_.path = target.substr(0, question);
  if (question != std::string::npos) request_.query = target.substr(question + 1);
  request_.is_http11 = message.version() == 11;
  request_.keep_alive = message.keep_alive();
  request_.expects_continue =
      absl::EqualsIgnoreCase(Text(message[http::field::expect]), "100-continue");
  request_.has_body = message.chunked() || impl_->parser.content_length().value_or(0) > 0;
  request_.authorization = Text(message[http::field::authorization]);
  const std::string key = Text(message["X-Api-Key"]);  // where Anthropic's clients have it
  if (request_.authorization.empty() && !key.empty()) {
    request_.authorization = absl::StrCat("Bearer ", key);
  }
  request_.content_type = Text(message[http::field::content_type]);
  request_.request_id = Text(message["X-Request-Id"]);
  request_.origin = Text(message[http::field::origin]);
  request_.requested_headers = Text(message[http::field::access_control_request_headers]);
  request_.if_none_match = Text(message[http::field::if_none_match]);
  head_done_ = true;
  return absl::OkStatus();
}

HttpRequest RequestParser::Take() {
  HttpRequest request = std::move(request_);
  request.body = std::move(impl_->parser.get().body());
  Begin();
  return request;
}

}  // namespace retroinfer::gateway
