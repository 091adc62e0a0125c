// Loads and calls a model that fourfold.save wrote, without Python; used by tests/test_model_consumer.py and the
// benchmark of files.
#ifdef FILES_PAGE  // the code of docs/files.md comes first: it has to include what it needs
#define main page
#include FILES_PAGE
#undef main
#endif

#include <fourfold/model.h>
#include <fourfold/program.h>
#include <torch/torch.h>

#include "files.h"

#include <chrono>
#include <fstream>
#include <iostream>

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

// Of /proc/self/status, in kB, such as VmHWM: the most resident memory so far.
int64_t kilobytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (int64_t found = 0; word == name + ":" && status >> found) return found;
  }
  return 0;
}

std::vector<c10::IValue> leaves(const c10::IValue& list) {
  std::vector<c10::IValue> found;
  for (const auto& leaf : list.toListRef()) found.push_back(leaf);
  return found;
}

}  // namespace

// Arguments: model; a list of calls, each a list of leaves; results; the maximum number of calls to time, within two
// seconds. Without arguments it runs the code of the page.
int main(int count, char** words) try {
#ifdef FILES_PAGE
  if (count == 1) return page();
#endif
  if (count != 5) throw std::invalid_argument("expected a model, calls, results and a number");
  const auto calls = read(words[2]).toListRef().vec();
  const int repetitions = std::stoi(words[4]);
  at::ones({1}).add_(1);  // initialises torch
  fourfold::keep_memory(size_t{1} << 30);  // as in Python
  const int64_t before = kilobytes("VmRSS");
  const auto begin = Clock::now();
  const fourfold::Model model = fourfold::load(words[1]);
  const auto loaded = Clock::now();
  c10::List<c10::IValue> results(c10::AnyType::get());
  Clock::time_point called;
  for (const c10::IValue& call : calls) {
    std::vector<c10::IValue> given = model(leaves(call));
    if (results.empty()) called = Clock::now();
    results.push_back(c10::ivalue::Tuple::create(std::move(given)));
  }
  write(results, words[3]);
  std::cout << "load " << milliseconds(begin, loaded) << "\nfirst " << milliseconds(loaded, called) << "\n";
  double best = 0;
  const auto end = Clock::now() + std::chrono::seconds(2);
  for (int k = 0; k < repetitions && Clock::now() < end; ++k) {
    const auto start = Clock::now();
    model(leaves(calls.back()));
    const double taken = milliseconds(start, Clock::now());
    best = k == 0 ? taken : std::min(best, taken);
  }
  int64_t compiled = 0, interpreted = 0;
  fourfold_nests_count(&compiled, &interpreted);
  std::cout << "warm " << best << "\ncompiled " << compiled << "\ninterpreted " << interpreted << "\nmemory "
            << static_cast<double>(kilobytes("VmHWM") - before) / 1e3 << "\nkept " << fourfold::release_memory() << "\n";
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
