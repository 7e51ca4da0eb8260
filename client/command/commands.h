// The subcommands of `retroinfer`.
//
// Each parses its own arguments (argv[0] is its name), environment and config file, and returns the
// exit code of client/command/exit_code.h. Output for people goes to streams.err, results to
// streams.out.
#pragma once

#include "client/command/streams.h"

namespace retroinfer::client {

// Generates from a prompt and streams the text.
int GenerateCommand(int argc, const char* const* argv, const Streams& streams);

// Talks with the model, turn by turn.
int ChatCommand(int argc, const char* const* argv, const Streams& streams);

// Measures throughput and latency of a running server, or of services that it starts and stops.
int BenchCommand(int argc, const char* const* argv, const Streams& streams);

// Says whether a model fits into this machine, and up to which context.
int CheckCommand(int argc, const char* const* argv, const Streams& streams);

// Lists the families of models that are served.
int ModelsCommand(int argc, const char* const* argv, const Streams& streams);

// Saves, lists, pins, checks, moves and removes durable contexts.
int CacheCommand(int argc, const char* const* argv, const Streams& streams);

// Says whether a worker or a store is ready, or alive.
int HealthCommand(int argc, const char* const* argv, const Streams& streams);

// Shows what worker and store are doing.
int PsCommand(int argc, const char* const* argv, const Streams& streams);

// Scores a text under the attention policies: perplexity, and how often they agree.
int ScoreCommand(int argc, const char* const* argv, const Streams& streams);

// Finds the retrieval ratio, by length of context, that keeps tokens of a text near those of full
// attention.
int TuneCommand(int argc, const char* const* argv, const Streams& streams);

// Starts and supervises kv_store_service and gpu_worker.
int ServeCommand(int argc, const char* const* argv, const Streams& streams);

}  // namespace retroinfer::client
