// Where the services of one machine meet: the folder that --socket-dir names, or one inside it.
#pragma once

#include <string>

namespace retroinfer::common {

// $XDG_RUNTIME_DIR/retroinfer, or /tmp/retroinfer-<user id>: what all programs use by default.
std::string DefaultSocketDir();

// Returns the folder that has the sockets when --socket-dir is `folder`:
//
//   FOLDER                                       SOCKETS ARE IN
//   mode 0700, or not there yet                  the folder itself
//   others may enter it: /tmp, the root of a     retroinfer-<user id>, a folder of mode 0700 in it
//   volume, a Kubernetes emptyDir (0777, 2777)
//
// All programs of one user get the same answer, before and after the store has made the folder.
// Makes nothing and checks nothing: the store does when it starts.
std::string SocketDirOf(const std::string& folder);

}  // namespace retroinfer::common
