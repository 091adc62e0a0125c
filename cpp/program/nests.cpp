#include "program/nests.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>

#include "system/system.h"

namespace fourfold::program {
namespace {

constexpr size_t most_layouts = 256;  // compiled for all programs with one text; on a CPU the interpreter runs the others
constexpr int calls_before = 2;  // a layout is compiled at this call
// In additions: such a layout is compiled at its first call, which takes about as long as the compilation, 50 ms.
constexpr int64_t large_work = 1'000'000'000;
constexpr int64_t awaited = std::numeric_limits<int64_t>::max();  // the work of a layout whose call waits

// Never destroyed: the compiler thread may wait on it while the process exits.
struct Requests {
  std::mutex mutex;
  std::condition_variable came;
  std::condition_variable answered;
  std::vector<Nests::Known*> waiting;
  Nests::Known* taken = nullptr;  // by the compiler
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Nests>> nests;  // by text and target
  bool served = false;
  bool provided = false;  // some nests were compiled ahead of time
  bool ran_without = false;  // some program, while there was neither a compiler nor a provided nest

  bool are_answered() const { return waiting.empty() && (taken == nullptr || taken->is_answered); }
};

Requests* all_requests = nullptr;

// After a fork the child gets fresh state: an unlocked mutex, and condition variables without waiters. The request that
// the parent's compiler had taken is the child's too.
void renew() {
  auto* const copy = new Requests;
  copy->waiting.swap(all_requests->waiting);
  if (all_requests->taken != nullptr && !all_requests->taken->is_answered) copy->waiting.push_back(all_requests->taken);
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

Nests::Answer Nests::find(const std::string& layout, Generator generator, int64_t work) {
  Requests& all = requests();
  std::unique_lock lock(all.mutex);
  const auto found = std::find_if(known_.begin(), known_.end(), [&](const auto& one) { return one->layout == layout; });
  Known* known = found == known_.end() ? nullptr : found->get();
  if (known == nullptr) {
    if (!all.served && !all.provided) {
      all.ran_without = true;
      return {};
    }
    if (known_.size() >= most_layouts) {
      return {true, nullptr, "programs with this text have " + std::to_string(most_layouts) + " layouts already"};
    }
    known = known_.emplace_back(new Known{this, layout}).get();
  }
  if (known->calls < calls_before) ++known->calls;
  if (known->is_answered) return {true, known->nest.get(), known->reason};
  const bool waits = generator == Generator::llvm;
  known->work = waits ? awaited : std::min(known->work, awaited - work) + work;
  const bool is_wanted = waits || work >= large_work || known->calls >= calls_before;
  if (is_wanted && !known->is_requested && all.served) {  // another generator may have counted these calls
    known->is_requested = true;
    all.waiting.push_back(known);
    all.came.notify_one();
  }
  if (waits) all.answered.wait(lock, [&] { return known->is_answered || !all.served; });
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

void Nests::add(std::string_view layout, std::unique_ptr<const Nest> nest) {
  const auto is_it = [&](const auto& one) { return one->layout == layout; };
  if (std::any_of(known_.begin(), known_.end(), is_it)) return;  // calls may use its nest
  known_.emplace_back(new Known{this, std::string(layout)});
  attach(layout, std::move(nest), {});
}

void Nests::count(int64_t& compiled, int64_t& interpreted) const {
  for (const auto& known : known_) {
    if (known->calls > 0) ++(known->nest != nullptr ? compiled : interpreted);
  }
}

namespace {

// A program's text without what its nests don't depend on: the sizes of its axes, the second line's words up to '=', and
// where parts of dimensions begin, a+2 or @3 in the lines of inputs.
std::string without_sizes(std::string_view text) {
  std::string result;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size() - 1) + 1);
    text.remove_prefix(line.size());
    const bool is_input = line.find(" = input ") != std::string_view::npos;
    bool is_left_out = false;
    for (const char c : line) {
      const bool is_size = number == 2 && c == '=', is_start = is_input && (c == '+' || c == '@');
      is_left_out = is_size || is_start || (is_left_out && c != ' ' && c != ']' && c != '\n');
      if (is_start && c == '@') result += '1';
      if (!is_left_out) result += c;
    }
  }
  return result;
}

}  // namespace

namespace {

Nests& nests_in(Requests& all, std::string text, std::string_view target) {
  std::pair key(std::move(text), std::string(target));
  std::unique_ptr<Nests>& known = all.nests[key];
  if (known == nullptr) known = std::make_unique<Nests>(std::move(key.first), std::move(key.second));
  return *known;
}

}  // namespace

Nests& nests_of(std::string_view text, std::string_view target) {
  Requests& all = requests();
  const std::scoped_lock lock(all.mutex);
  return nests_in(all, without_sizes(text), target);
}

void provide(std::string_view text, std::string_view layout, std::unique_ptr<const Nest> nest) {
  Requests& all = requests();
  const std::scoped_lock lock(all.mutex);
  all.provided = true;
  nests_in(all, std::string(text), {}).add(layout, std::move(nest));
}

namespace {

void answer(const char* text, const char* layout, const char* target, std::unique_ptr<const Nest> nest, const char* reason = "") {
  Requests& all = requests();
  const std::scoped_lock lock(all.mutex);
  const auto found = all.nests.find({text, target});
  if (found == all.nests.end()) return;
  found->second->attach(layout, std::move(nest), reason);
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
  const auto less = [](const Nests::Known* a, const Nests::Known* b) { return a->work < b->work; };
  const auto next = std::max_element(all.waiting.begin(), all.waiting.end(), less);  // of equal ones the first
  const Nests::Known& taken = *(all.taken = *next);
  all.waiting.erase(next);
  lock.unlock();
  take(context, taken.of->text().c_str(), taken.layout.c_str(), taken.of->target().c_str());
  return 1;
}

int32_t fourfold_nests_wait(int64_t milliseconds) {
  Requests& all = requests();
  std::unique_lock lock(all.mutex);
  const auto is_over = [&] { return all.are_answered() || !all.served; };
  all.answered.wait_for(lock, std::chrono::milliseconds(milliseconds), is_over);
  return all.are_answered() ? 1 : all.served ? 0 : -1;
}

void fourfold_nests_count(int64_t* compiled, int64_t* interpreted) {
  Requests& all = requests();
  const std::scoped_lock lock(all.mutex);
  *compiled = 0;
  *interpreted = all.ran_without ? 1 : 0;
  for (const auto& [key, nests] : all.nests) nests->count(*compiled, *interpreted);
}

void fourfold_nests_attach(
    const char* text, const char* layout, void* const* functions, int32_t count, int64_t bytes, int64_t bytes_of_column,
    int64_t bytes_of_panel, int32_t sums) {
  if (count == 0) return answer(text, layout, "", nullptr, "it has no functions");
  auto nest = std::make_unique<Nest>();
  for (int32_t k = 0; k < count; ++k) nest->functions.push_back(reinterpret_cast<NestFunction*>(functions[k]));
  nest->bytes = bytes;
  nest->bytes_of_column = bytes_of_column;
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
