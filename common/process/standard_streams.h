// The three descriptors that every program expects.
#pragma once

namespace retroinfer::common {

// Opens /dev/null in place of stdin, stdout and stderr where the caller has closed them, so that no
// socket or file that is opened later gets their numbers and the program's text. What is read there
// is an error, and so is what is written to stdout: a result that nobody gets is not a success.
//
// Threads: to be called at the start of main().
void OpenStandardStreams();

}  // namespace retroinfer::common
