#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cache/private_file.h"
#include "client/command/command_line.h"
#include "client/command/commands.h"
#include "client/command/connection.h"
#include "client/command/interrupt.h"
#include "client/command/number_format.h"
#include "client/command/prefill_progress_line.h"
#include "common/build_info/build_info.h"
#include "common/config/byte_size.h"
#include "common/config/option_list.h"
#include "common/files/named_stream.h"
#include "common/rpc/context_affinity.h"
#include "common/status/status_macros.h"

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

constexpr size_t kChunkBytes = 1 << 20;

struct CacheOptions {
  ConnectionOptions connection;
  std::string salt;
  std::string name;
  std::string file;
  bool pinned = false;
  bool replace = false;
  bool json = false;
  bool quiet = false;
  bool chat = false;
  absl::Duration time_to_live = absl::InfiniteDuration();
};

// One call: ends with Ctrl-C, and says what went wrong.
class Call {
 public:
  Call(const CacheOptions& options, const char* command, const Streams& streams)
      : options_(options), command_(command), streams_(streams) {}

  // Runs `call(stub, context)`, which is about `affinity` (connection.h), and returns the exit
  // code.
  int Run(const std::function<grpc::Status(v1::ContextService::Stub&, grpc::ClientContext&)>& call,
          const std::string& affinity = "") {
    InterruptWatcher interrupts;  // before gRPC has threads
    const auto connection = Connection::Open(options_.connection);
    if (!connection.ok()) return Fail(std::string(connection.status().message()), kExitUsage);
    grpc::ClientContext context;
    (*connection)->Prepare(&context, affinity);
    interrupts.SetCallback([&](int) {
      interrupted_ = true;
      context.TryCancel();
    });
    const grpc::Status status = call((*connection)->contexts(), context);
    interrupts.SetCallback(nullptr);
    if (interrupted_) return Fail("interrupted", interrupts.ExitCode());
    return status.ok() ? kExitOk : Fail((*connection)->Explain(status), kExitFailed);
  }

  bool interrupted() const { return interrupted_; }
  int Fail(const std::string& message, int exit_code) const {
    return client::Fail(streams_, absl::StrCat("cache ", command_), message, exit_code);
  }

 private:
  const CacheOptions& options_;
  const char* const command_;
  const Streams& streams_;
  std::atomic<bool> interrupted_ = false;
};

const char* TierText(v1::ContextTier tier) {
  switch (tier) {
    case v1::CONTEXT_TIER_DISK:
      return "disk";
    case v1::CONTEXT_TIER_ARENA_AND_DISK:
      return "memory+disk";
    case v1::CONTEXT_TIER_ARENA:
      return "memory";
    case v1::CONTEXT_TIER_PARTLY_LOST:
      return "partly lost";
    default:
      return "unknown";
  }
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(time.seconds()),
                          absl::UTCTimeZone());
}

nlohmann::json ContextJson(const v1::ContextInfo& context) {
  nlohmann::json json = {{"name", context.name()},
                         {"tokens", context.num_tokens()},
                         {"reusable_tokens", context.reusable_tokens()},
                         {"bytes", context.bytes()},
                         {"segments", context.num_segments()},
                         {"segments_in_memory", context.segments_in_arena()},
                         {"segments_on_disk", context.segments_on_disk()},
                         {"tier", TierText(context.tier())},
                         {"pinned", context.pinned()},
                         {"created", TimeText(context.created())},
                         {"last_used", TimeText(context.last_used())}};
  if (context.has_expires()) json["expires"] = TimeText(context.expires());
  return json;
}

void PrintTable(const v1::ListContextsResponse& response, std::FILE* out) {
  std::fprintf(out, "%-24s %10s %10s %11s  %-11s  %-6s  %-20s  %s\n", "NAME", "TOKENS", "REUSABLE",
               "SIZE", "TIER", "PINNED", "LAST USED", "EXPIRES");
  for (const v1::ContextInfo& context : response.contexts()) {
    std::fprintf(out, "%-24s %10s %10s %11s  %-11s  %-6s  %-20s  %s\n", context.name().c_str(),
                 WithThousands(context.num_tokens()).c_str(),
                 WithThousands(context.reusable_tokens()).c_str(),
                 common::FormatByteSize(static_cast<uint64_t>(context.bytes())).c_str(),
                 TierText(context.tier()), context.pinned() ? "yes" : "no",
                 TimeText(context.last_used()).c_str(),
                 context.has_expires() ? TimeText(context.expires()).c_str() : "never");
  }
}

template <typename Request>
Request NamedRequest(const CacheOptions& options) {
  Request request;
  request.set_name(options.name);
  request.set_cache_salt(options.salt);
  return request;
}

int List(const CacheOptions& options, Call& call, const Streams& streams) {
  v1::ListContextsRequest request;
  request.set_cache_salt(options.salt);
  v1::ListContextsResponse response;
  const int code = call.Run([&](v1::ContextService::Stub& stub, grpc::ClientContext& context) {
    return stub.ListContexts(&context, request, &response);
  });
  if (code != kExitOk) return code;
  if (options.json) {
    nlohmann::json contexts = nlohmann::json::array();
    for (const v1::ContextInfo& context : response.contexts()) {
      contexts.push_back(ContextJson(context));
    }
    std::fprintf(streams.out, "%s\n", nlohmann::json{{"contexts", contexts}}.dump(2).c_str());
  } else {
    PrintTable(response, streams.out);
  }
  return kExitOk;
}

absl::StatusOr<v1::SaveContextRequest> SaveRequest(const CacheOptions& options) {
  auto request = NamedRequest<v1::SaveContextRequest>(options);
  ASSIGN_OR_RETURN(std::string text, ReadWholeFile(options.file));
  if (options.chat) {
    v1::Message* message = request.mutable_messages()->add_messages();
    message->set_role("user");
    message->set_content(std::move(text));
  } else {
    request.set_text(std::move(text));
  }
  request.set_pinned(options.pinned);
  request.set_replace(options.replace);
  if (options.time_to_live != absl::InfiniteDuration()) {
    absl::Duration rest;
    request.mutable_time_to_live()->set_seconds(
        absl::IDivDuration(options.time_to_live, absl::Seconds(1), &rest));
    request.mutable_time_to_live()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  }
  return request;
}

int Save(const CacheOptions& options, Call& call, const Streams& streams) {
  const auto request = SaveRequest(options);
  if (!request.ok()) return call.Fail(std::string(request.status().message()), kExitUsage);
  v1::SavedContext saved;
  const auto save = [&](v1::ContextService::Stub& stub, grpc::ClientContext& context) {
    PrefillProgressLine progress(options.quiet ? nullptr : streams.err, IsTerminal(streams.err));
    const auto reader = stub.SaveContext(&context, *request);
    v1::SaveContextResponse response;
    while (reader->Read(&response)) {
      if (response.has_progress()) progress.Show(response.progress());
      if (response.has_saved()) saved = response.saved();
    }
    progress.Clear();
    return reader->Finish();
  };
  // As the questions about it will have: the node that saves is the one that is asked.
  generation::v1::GenerateRequest question;
  question.set_text(request->text());
  if (request->has_messages()) *question.mutable_messages() = request->messages();
  const int code = call.Run(save, common::ContextAffinity(question));
  if (code != kExitOk) return code;
  const v1::ContextInfo& context = saved.context();
  const google::protobuf::Duration& elapsed = saved.elapsed();
  const double seconds = static_cast<double>(elapsed.seconds()) + 1e-9 * elapsed.nanos();
  if (options.json) {
    nlohmann::json json = ContextJson(context);
    json["computed_tokens"] = saved.computed_tokens();
    json["seconds"] = seconds;
    std::fprintf(streams.out, "%s\n", json.dump(2).c_str());
  } else {
    std::fprintf(streams.out, "saved %s: %s tokens, %s reusable, %s; computed %s tokens, %.2f s\n",
                 context.name().c_str(), WithThousands(context.num_tokens()).c_str(),
                 WithThousands(context.reusable_tokens()).c_str(),
                 common::FormatByteSize(static_cast<uint64_t>(context.bytes())).c_str(),
                 WithThousands(saved.computed_tokens()).c_str(), seconds);
  }
  return kExitOk;
}

int Pin(const CacheOptions& options, Call& call, const Streams& streams) {
  const auto request = NamedRequest<v1::PinContextRequest>(options);
  v1::PinContextResponse response;
  const int code = call.Run([&](v1::ContextService::Stub& stub, grpc::ClientContext& context) {
    return stub.PinContext(&context, request, &response);
  });
  if (code == kExitOk) std::fprintf(streams.out, "pinned %s\n", options.name.c_str());
  return code;
}

int Unpin(const CacheOptions& options, Call& call, const Streams& streams) {
  const auto request = NamedRequest<v1::UnpinContextRequest>(options);
  v1::UnpinContextResponse response;
  const int code = call.Run([&](v1::ContextService::Stub& stub, grpc::ClientContext& context) {
    return stub.UnpinContext(&context, request, &response);
  });
  if (code == kExitOk) std::fprintf(streams.out, "unpinned %s\n", options.name.c_str());
  return code;
}

int Remove(const CacheOptions& options, Call& call, const Streams& streams) {
  const auto request = NamedRequest<v1::RemoveContextRequest>(options);
  v1::RemoveContextResponse response;
  const int code = call.Run([&](v1::ContextService::Stub& stub, grpc::ClientContext& context) {
    return stub.RemoveContext(&context, request, &response);
  });
  if (code == kExitOk) {
    std::fprintf(streams.out, "removed %s: %d segments, %s\n", options.name.c_str(),
                 response.removed_segments(),
                 common::FormatByteSize(static_cast<uint64_t>(response.removed_bytes())).c_str());
  }
  return code;
}

int Verify(const CacheOptions& options, Call& call, const Streams& streams) {
  const auto request = NamedRequest<v1::VerifyContextRequest>(options);
  v1::VerifyContextResponse response;
  const int code = call.Run([&](v1::ContextService::Stub& stub, grpc::ClientContext& context) {
    return stub.VerifyContext(&context, request, &response);
  });
  if (code != kExitOk) return code;
  std::fprintf(streams.out, "%s: %d of %d segments intact, %s checked\n", options.name.c_str(),
               response.intact_segments(), response.num_segments(),
               common::FormatByteSize(static_cast<uint64_t>(response.bytes_checked())).c_str());
  for (const std::string& problem : response.problems()) {
    std::fprintf(streams.err, "  %s\n", problem.c_str());
  }
  if (response.intact_segments() == response.num_segments()) return kExitOk;
  return call.Fail(
      absl::StrCat(response.damaged_segments(), " segments are damaged and ",
                   response.missing_segments(),
                   " missing: they are computed again when they are wanted; 'retroinfer "
                   "cache save --force' makes the context whole"),
      kExitFailed);
}

int Export(const CacheOptions& options, Call& call, const Streams& streams) {
  const auto request = NamedRequest<v1::ExportContextRequest>(options);
  auto file = PrivateFile::Create(options.file, options.replace);
  if (!file.ok()) return call.Fail(std::string(file.status().message()), kExitUsage);
  absl::Status written;
  uint64_t bytes = 0;
  const int code = call.Run([&](v1::ContextService::Stub& stub, grpc::ClientContext& context) {
    const auto reader = stub.ExportContext(&context, request);
    v1::ExportContextResponse response;
    while (reader->Read(&response)) {
      bytes += response.data().size();
      if (written.ok()) written = file->Append(response.data());
      if (!written.ok()) context.TryCancel();
    }
    const grpc::Status status = reader->Finish();
    return written.ok() ? status : grpc::Status::OK;
  });
  if (code != kExitOk) return code;
  if (written.ok()) written = file->Commit();
  if (!written.ok()) return call.Fail(std::string(written.message()), kExitFailed);
  std::fprintf(streams.out, "exported %s to %s: %s\n", options.name.c_str(), options.file.c_str(),
               common::FormatByteSize(bytes).c_str());
  return kExitOk;
}

int Import(const CacheOptions& options, Call& call, const Streams& streams) {
  absl::StatusOr<common::NamedInput> file = common::NamedInput::Open(options.file);
  std::string chunk(kChunkBytes, '\0');
  absl::StatusOr<size_t> size =
      file.ok() ? file->Read(chunk.data(), chunk.size()) : absl::StatusOr<size_t>(file.status());
  if (!size.ok()) return call.Fail(std::string(size.status().message()), kExitUsage);
  v1::ImportContextResponse response;
  const int code = call.Run([&](v1::ContextService::Stub& stub, grpc::ClientContext& context) {
    const auto writer = stub.ImportContext(&context, &response);
    auto request = NamedRequest<v1::ImportContextRequest>(options);
    request.set_pinned(options.pinned);
    request.set_replace(options.replace);
    do {
      request.set_data(chunk.substr(0, *size));
      if (!writer->Write(request)) break;  // Finish() says why
      request.Clear();
      size = file->Read(chunk.data(), chunk.size(), [&call] { return call.interrupted(); });
    } while (size.ok() && *size > 0);
    if (!size.ok()) context.TryCancel();
    writer->WritesDone();
    return writer->Finish();
  });
  if (!size.ok()) return call.Fail(std::string(size.status().message()), kExitFailed);
  if (code != kExitOk) return code;
  const v1::ContextInfo& context = response.context();
  std::fprintf(streams.out, "imported %s: %s tokens, %s reusable, %s; %d of %d segments are new\n",
               context.name().c_str(), WithThousands(context.num_tokens()).c_str(),
               WithThousands(context.reusable_tokens()).c_str(),
               common::FormatByteSize(static_cast<uint64_t>(context.bytes())).c_str(),
               response.written_segments(), context.num_segments());
  return kExitOk;
}

struct Subcommand {
  const char* name;
  int (*run)(const CacheOptions&, Call&, const Streams&);
  const char* help;
};
constexpr Subcommand kSubcommands[] = {
    {"ls", List, "list the contexts"},
    {"save", Save, "keep the KV of a text under a name; computes what is missing"},
    {"pin", Pin, "never evict a context"},
    {"unpin", Unpin, "let a context be evicted when room is needed"},
    {"rm", Remove, "remove a context and what only it needs"},
    {"verify", Verify, "read a context from the disk and check every byte"},
    {"export", Export, "write a context to a file"},
    {"import", Import, "take a context from a file that export wrote"},
};

void AddOptions(std::string_view subcommand, common::Settings* settings, CacheOptions* options) {
  CLI::App& app = settings->app();
  const bool imports = subcommand == "import";
  if (imports) app.add_option("file", options->file, "A file that export wrote")->required();
  if (imports) app.add_option("--name", options->name, "Name. Default: the one in the file");
  if (!imports && subcommand != "ls") {
    app.add_option("name", options->name, "Name of the context")->required();
  }
  if (subcommand == "export") app.add_option("file", options->file, "File to write")->required();
  if (subcommand == "save") {
    app.add_option("--file", options->file, "File with the text")->required();
    app.add_flag("--chat", options->chat, "The text is a user's message, for chats");
    app.add_flag("--quiet", options->quiet, "No progress on stderr");
    settings->AddDuration("--ttl", &options->time_to_live, "Forget the name after this time");
  }
  if (subcommand == "save" || imports) {
    app.add_flag("--pin", options->pinned, "Never evict the context");
  }
  if (subcommand == "export" || subcommand == "save" || imports) {
    app.add_flag("--force", options->replace, "Replace what is there");
  }
  if (subcommand == "save" || subcommand == "ls") {
    app.add_flag("--json", options->json, "Write one JSON object");
  }
  app.add_option("--cache-salt", options->salt, "The tenant. Default: the one without a salt");
  AddConnectionOptions(settings, &options->connection);
  AddContextAffinityOption(settings, &options->connection);
}

void PrintHelp(std::FILE* out) {
  std::fprintf(out, "Usage: retroinfer cache COMMAND [OPTIONS]\n\nCommands:\n");
  for (const Subcommand& subcommand : kSubcommands) {
    std::fprintf(out, "  %-10s%s\n", subcommand.name, subcommand.help);
  }
}

}  // namespace

int CacheCommand(int argc, const char* const* argv, const Streams& streams) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h") {
    PrintHelp(streams.out);
    return kExitOk;
  }
  if (name == common::kOptionListFlag) {
    for (const Subcommand& subcommand : kSubcommands) {
      std::fprintf(streams.out, "%s\t%s\n", subcommand.name, subcommand.help);
    }
    return kExitOk;
  }
  for (const Subcommand& subcommand : kSubcommands) {
    if (subcommand.name != name) continue;
    CacheOptions options;
    common::Settings settings(subcommand.help, common::kBuildVersion);
    AddOptions(name, &settings, &options);
    const std::string full_name = absl::StrCat("cache ", subcommand.name);
    std::vector<const char*> arguments(argv + 1, argv + argc);
    arguments[0] = full_name.c_str();
    if (const auto done = ParseArguments(settings, argc - 1, arguments.data(), streams)) {
      return *done;
    }
    Call call(options, subcommand.name, streams);
    const int code = subcommand.run(options, call, streams);
    std::fflush(streams.out);
    return code;
  }
  if (!name.empty()) {
    Fail(streams, "cache", absl::StrCat("unknown command '", std::string(name), "'"), kExitUsage);
  }
  PrintHelp(streams.err);
  return kExitUsage;
}

}  // namespace retroinfer::client
