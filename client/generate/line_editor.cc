#include "client/generate/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cwchar>
#include <utility>

#include "common/shm/unique_fd.h"

namespace retroinfer::client {
namespace {

constexpr int kHistoryLines = 1000;

// libedit decodes and measures characters by the locale. Where none is set, UTF-8 is the best
// guess.
void UseLocaleForCharacters() {
  const char* const set = std::setlocale(LC_CTYPE, "");
  if (set == nullptr || std::string(set) == "C" || std::string(set) == "POSIX") {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
}

class LibeditEditor final : public LineEditor {
 public:
  LibeditEditor(std::FILE* in, std::string prompt)
      : in_(::fileno(in)),
        prompt_(std::move(prompt)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~LibeditEditor() override {
    if (editor_ != nullptr) ::el_end(editor_);
    if (history_ != nullptr) ::history_end(history_);
  }

  bool Start(std::FILE* in, std::FILE* out) {
    UseLocaleForCharacters();
    editor_ = ::el_init("retroinfer", in, out, out);
    history_ = ::history_init();
    if (editor_ == nullptr || history_ == nullptr || !wake_.valid()) return false;
    HistEvent event;
    ::history(history_, &event, H_SETSIZE, kHistoryLines);
    ::history(history_, &event, H_SETUNIQUE, 1);
    return ::el_set(editor_, EL_CLIENTDATA, this) == 0 &&
           ::el_set(editor_, EL_PROMPT, &Prompt) == 0 &&
           ::el_set(editor_, EL_EDITOR, "emacs") == 0 && ::el_set(editor_, EL_SIGNAL, 0) == 0 &&
           ::el_set(editor_, EL_HIST, ::history, history_) == 0 &&
           ::el_set(editor_, EL_GETCFN, &ReadCharacter) == 0;
  }

  Result ReadLine(std::string* line) override {
    eventfd_t ignored = 0;
    ::eventfd_read(wake_.get(), &ignored);
    interrupted_ = false;
    int size = 0;
    const char* const text = ::el_gets(editor_, &size);
    if (interrupted_) return Result::kInterrupted;
    if (text == nullptr || size <= 0) return Result::kEnd;
    line->assign(text);
    while (!line->empty() && (line->back() == '\n' || line->back() == '\r')) line->pop_back();
    HistEvent event;
    if (!line->empty()) ::history(history_, &event, H_ENTER, line->c_str());
    return Result::kLine;
  }

  void Interrupt() override { ::eventfd_write(wake_.get(), 1); }

 private:
  static LibeditEditor* Of(EditLine* editor) {
    void* self = nullptr;
    ::el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<LibeditEditor*>(self);
  }
  static char* Prompt(EditLine* editor) { return Of(editor)->prompt_.data(); }
  static int ReadCharacter(EditLine* editor, wchar_t* character) {
    return Of(editor)->Read(character);
  }

  // Returns 1 with a character, 0 at the end, -1 if interrupted.
  int Read(wchar_t* character) {
    std::mbstate_t state{};
    while (true) {
      pollfd polled[] = {{in_, POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      if (::poll(polled, 2, -1) < 0 && errno != EINTR) return -1;
      if (polled[1].revents != 0) {
        interrupted_ = true;
        return -1;
      }
      if (polled[0].revents == 0) continue;
      char byte = 0;
      const ssize_t size = ::read(in_, &byte, 1);
      if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (size <= 0) return 0;
      const bool begun = std::mbsinit(&state) == 0;
      size_t used = std::mbrtowc(character, &byte, 1, &state);
      if (used == static_cast<size_t>(-1)) {  // no character: leave it out
        state = {};
        // What came before may have been cut; this byte may begin the next one.
        if (begun) used = std::mbrtowc(character, &byte, 1, &state);
      }
      if (used == static_cast<size_t>(-1)) {
        state = {};
      } else if (used != static_cast<size_t>(-2)) {
        return 1;
      }
    }
  }

  const int in_;
  std::string prompt_;
  const common::UniqueFd wake_;
  EditLine* editor_ = nullptr;
  History* history_ = nullptr;
  bool interrupted_ = false;
};

}  // namespace

std::unique_ptr<LineEditor> LineEditor::Create(std::FILE* in, std::FILE* out, std::string prompt) {
  auto editor = std::make_unique<LibeditEditor>(in, std::move(prompt));
  if (!editor->Start(in, out)) return nullptr;
  return editor;
}

}  // namespace retroinfer::client
