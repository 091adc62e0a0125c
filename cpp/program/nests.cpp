#include "program/nests.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "system/system.h"

namespace fourfold::program {
namespace {

constexpr size_t most_layouts = 16;  // compiled for one program on the CPU; the interpreter runs the others
constexpr size_t most_of_device = 256;  // likewise on devices, which have no interpreter
constexpr int calls_before = 2;      // a layout is compiled at this call

struct Request {
  std::string text;
  std::string layout;
  std::string target;
};

// Never destroyed: the compiler thread may wait on it while the process exits.
struct Requests {
  std::mutex mutex;
  std::condition_variable came;
  std::condition_variable answered;
  std::deque<Request> waiting;
  std::map<std::pair<std::string, std::string>, std::weak_ptr<Nests>> nests;  // by text and target
  bool served = false;
};

Requests* all_requests = nullptr;

// After a fork the child gets fresh state: an unlocked mutex, and condition variables without waiters.
void renew() {
  auto* const copy = new Requests;
  copy->waiting.swap(all_requests->waiting);
  copy->nests.swap(all_requests->nests);
  all_requests->mutex.unlock();
  all_requests = copy;
}

Requests& requests() {
  static const bool is_made = [] {
    all_requests = new Requests;
    system::at_fork([] { all_requests->mutex.lock(); }, [] { all_requests->mutex.unlock(); }, renew);
    return true;
  }();
  static_cast<void>(is_made);
  return *all_requests;
}

}  // namespace

Nests::Answer Nests::find(const std::string& layout, Generator generator) {
  Requests& all = requests();
  std::unique_lock lock(all.mutex);
  const auto found = std::find_if(known_.begin(), known_.end(), [&](const auto& one) { return one->layout == layout; });
  Known* known = found == known_.end() ? nullptr : found->get();
  if (known == nullptr) {
    if (!all.served || known_.size() >= (target_.empty() ? most_layouts : most_of_device)) return {};
    known = known_.emplace_back(new Known{layout, 0, false, false, nullptr, {}}).get();
  }
  if (known->is_answered) return {true, known->nest.get(), known->reason};
  const int wanted = generator == Generator::llvm ? 1 : calls_before;
  if (known->calls < wanted) ++known->calls;
  if (known->calls >= wanted && !known->is_requested && all.served) {  // another generator may have counted these calls
    known->is_requested = true;
    all.waiting.push_back({text_, layout, target_});
    all.came.notify_one();
  }
  if (generator == Generator::llvm) all.answered.wait(lock, [&] { return known->is_answered || !all.served; });
  return {known->is_answered, known->nest.get(), known->reason};
}

void Nests::attach(std::string_view layout, std::unique_ptr<const Nest> nest, std::string_view reason) {
  for (const auto& known : known_) {
    if (known->layout != layout) continue;
    known->nest = std::move(nest);
    known->reason = reason;
    known->is_answered = true;
  }
}

std::shared_ptr<Nests> nests_of(std::string_view text, std::string_view target) {
  Requests& all = requests();
  const std::scoped_lock lock(all.mutex);
  std::weak_ptr<Nests>& known = all.nests[{std::string(text), std::string(target)}];
  auto nests = known.lock();
  if (nests == nullptr) known = nests = std::make_shared<Nests>(std::string(text), std::string(target));
  return nests;
}

namespace {

void answer(const char* text, const char* layout, const char* target, std::unique_ptr<const Nest> nest, const char* reason = "") {
  Requests& all = requests();
  const std::scoped_lock lock(all.mutex);
  const auto found = all.nests.find({text, target});
  const auto nests = found == all.nests.end() ? nullptr : found->second.lock();
  if (nests == nullptr) return;
  nests->attach(layout, std::move(nest), reason);
  all.answered.notify_all();
}

}  // namespace
}  // namespace fourfold::program

using namespace fourfold::program;

void fourfold_nests_serve(int32_t served) {
  Requests& all = requests();
  const std::scoped_lock lock(all.mutex);
  all.served = served != 0;
  all.came.notify_all();
  all.answered.notify_all();
}

int32_t fourfold_nests_next(
    int64_t milliseconds, void* context, void (*take)(void* context, const char* text, const char* layout, const char* target)) {
  Requests& all = requests();
  std::unique_lock lock(all.mutex);
  const auto is_over = [&] { return !all.waiting.empty() || !all.served; };
  if (!all.came.wait_for(lock, std::chrono::milliseconds(milliseconds), is_over) || all.waiting.empty()) return 0;
  const Request next = std::move(all.waiting.front());
  all.waiting.pop_front();
  lock.unlock();
  take(context, next.text.c_str(), next.layout.c_str(), next.target.c_str());
  return 1;
}

void fourfold_nests_attach(
    const char* text, const char* layout, void* const* functions, int32_t count, int64_t bytes_of_column,
    int64_t bytes_of_block, int64_t bytes_of_panel, int32_t sums) {
  if (count == 0) return answer(text, layout, "", nullptr, "it has no functions");
  auto nest = std::make_unique<Nest>();
  for (int32_t k = 0; k < count; ++k) nest->functions.push_back(reinterpret_cast<NestFunction*>(functions[k]));
  nest->bytes_of_column = bytes_of_column;
  nest->bytes_of_block = bytes_of_block;
  nest->bytes_of_panel = bytes_of_panel;
  nest->sums = sums;
  answer(text, layout, "", std::move(nest));
}

void fourfold_nests_attach_code(
    const char* text, const char* layout, const char* target, const void* code, int64_t bytes, const char* const* kernels,
    const int64_t* threads, const int64_t* shared_bytes, int32_t count) {
  auto nest = std::make_unique<Nest>();
  nest->code.assign(static_cast<const char*>(code), static_cast<size_t>(bytes));
  for (int32_t k = 0; k < count; ++k) nest->kernels.push_back({kernels[k], static_cast<int>(threads[k]), shared_bytes[k]});
  answer(text, layout, target, std::move(nest));
}

void fourfold_nests_refuse(const char* text, const char* layout, const char* target, const char* reason) {
  answer(text, layout, target, nullptr, reason);
}
