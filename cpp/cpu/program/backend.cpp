#include "program/backend.h"

#include <torch/headeronly/core/DeviceType.h>

#include <atomic>

#include "cpu/program/loops.h"
#include "cpu/program/run.h"
#include "cpu/program/schedule.h"

namespace fourfold::cpu {
namespace {

using program::Generator;

class Scheduled final : public program::Executable {
 public:
  Scheduled(const program::Program& program, std::string_view text)
      : program_(program), schedule_(cpu::schedule(program)), nests_(program::nests_of(text)) {}

  std::unique_ptr<const program::Call> prepare(
      const std::vector<int64_t>& sizes, const program::Tensor* inputs, const program::Tensor* outputs) const override;
  void use(Generator generator) override { generator_.store(generator, std::memory_order_relaxed); }

  const program::Program& program() const { return program_; }
  const Schedule& schedule() const { return schedule_; }
  Generator generator() const { return generator_.load(std::memory_order_relaxed); }
  program::Nests& nests() const { return *nests_; }

 private:
  const program::Program& program_;
  const Schedule schedule_;
  const std::shared_ptr<program::Nests> nests_;
  std::atomic<Generator> generator_{Generator::interpreter};
};

// By its loop nest if there is one, else by the interpreter.
class ScheduledCall final : public program::Call {
 public:
  ScheduledCall(const Scheduled& made, const std::vector<int64_t>& sizes, const program::Tensor* inputs,
                const program::Tensor* outputs)
      : made_(made), sizes_(sizes), loops_(made.program(), made.schedule(), sizes, inputs, outputs) {}

  void run(const program::Tensor* inputs, const program::Tensor* outputs) const override {
    if (const program::Nest* nest = this->nest()) return loops_.run(*nest, inputs, outputs);
    cpu::run(made_.program(), made_.schedule(), sizes_, inputs, outputs);
  }
  const std::string& layout() const override { return loops_.layout(); }

 private:
  const program::Nest* nest() const {
    const Generator generator = made_.generator();
    if (generator == Generator::interpreter || loops_.rows() == 0 || loops_.columns() == 0) return nullptr;
    if (is_known_.load(std::memory_order_acquire)) return nest_;
    const auto [is_final, nest] = made_.nests().find(loops_.layout(), generator);
    if (!is_final) return nullptr;
    nest_.store(nest, std::memory_order_relaxed);
    is_known_.store(true, std::memory_order_release);
    return nest;
  }

  const Scheduled& made_;
  const std::vector<int64_t> sizes_;
  const Loops loops_;
  mutable std::atomic<const program::Nest*> nest_{nullptr};
  mutable std::atomic<bool> is_known_{false};
};

std::unique_ptr<const program::Call> Scheduled::prepare(
    const std::vector<int64_t>& sizes, const program::Tensor* inputs, const program::Tensor* outputs) const {
  return std::make_unique<ScheduledCall>(*this, sizes, inputs, outputs);
}

constexpr program::Backend backend{
    .compile = [](const program::Program& program, std::string_view text) -> std::unique_ptr<program::Executable> {
      return std::make_unique<Scheduled>(program, text);
    },
};

const program::BackendRegistration registration(static_cast<int32_t>(torch::headeronly::DeviceType::CPU), backend);

}  // namespace
}  // namespace fourfold::cpu
