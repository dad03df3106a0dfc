// Tests the parts of its host process that the library must not change, one test for each part.
#include <cfenv>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <locale>
#include <map>
#include <sstream>

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "host.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration): not in every unistd.h

namespace host {
namespace {

/// Uses all of the library: training, inference, saving and errors. Keeps the saved states in folder `kept`, unless
/// `kept` is empty.
void live(const std::string& kept = {}, std::int32_t threads = 1) {
  Context context;
  lockstep_context_options on = context_options();
  on.threads = threads;
  ASSERT_TRUE(ok(lockstep_context_create(&on, &context)));
  const SelfComm comm(context);
  for (const lockstep_dtype dtype : {LOCKSTEP_F32, LOCKSTEP_F64}) {
    const Mlp model(context, {3, 16, 1}, dtype);
    lockstep_trainer_options options = trainer_options(16);
    options.weight_decay = 0.125;
    const NewTrainer trainer(model, comm, options);
    std::vector<double> x = drawn(16 * 3), y(16), z(16);
    const View in(x.data(), {16, 3}), target(y.data(), {16, 1}), out(z.data(), {16, 1});
    for (int step = 0; step < 5; ++step) {
      ASSERT_TRUE(ok(add(trainer, in, target)));
      ASSERT_TRUE(ok(lockstep_trainer_update(trainer, 1e-2)));
      ASSERT_TRUE(ok(infer(model, in, out)));
    }
    const std::string folder = kept.empty() ? temporary("live") : kept + (dtype == LOCKSTEP_F32 ? "/f32" : "/f64");
    ASSERT_TRUE(ok(lockstep_trainer_save(trainer, folder.c_str(), 0)));
    ASSERT_TRUE(ok(lockstep_trainer_load(trainer, folder.c_str(), 0)));
    if (kept.empty()) {
      std::filesystem::remove_all(folder);
      EXPECT_TRUE(is(LOCKSTEP_ERR_IO, lockstep_trainer_load(trainer, folder.c_str(), 0)));
    }
    EXPECT_TRUE(fails(LOCKSTEP_ERR_INVALID, lockstep_trainer_update(trainer, -1.5), {"learning_rate is -1"}));
    const Mlp differentiated(context, {3, 16, 1}, dtype);
    options.loss = LOCKSTEP_LOSS_GIVEN;
    const NewTrainer given(differentiated, comm, options);
    lockstep_tape_options of_tape;
    ASSERT_TRUE(ok(lockstep_tape_options_init(&of_tape, sizeof of_tape)));
    of_tape.max_batch = 20;  // more than the number of samples
    of_tape.vjp = of_tape.jvp = 1;
    Owned<lockstep_tape, lockstep_tape_destroy> tape;
    ASSERT_TRUE(ok(lockstep_tape_create(differentiated, &of_tape, &tape)));
    std::int64_t pass = -1;
    View at = in, to = out;
    ASSERT_TRUE(ok(lockstep_tape_forward(tape, at.get(), to.get(), &pass, nullptr)));
    ASSERT_TRUE(ok(lockstep_tape_jvp(tape, pass, at.get(), to.get(), nullptr)));
    ASSERT_TRUE(ok(lockstep_tape_vjp(tape, pass, to.get(), at.get(), nullptr)));
    ASSERT_TRUE(ok(lockstep_tape_backward(tape, pass, to.get(), at.get(), nullptr)));
    ASSERT_TRUE(ok(lockstep_trainer_update(given, 1e-2)));
  }
}

/// Runs body() in a child process. Returns the status of waitpid(), which is 0 if the child exited normally and no
/// check failed.
template <class Body>
int in_child(Body&& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    body();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

constexpr int kTraps = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;

TEST(LeftAlone, FloatingPointFlags) {
  live();  // the first use loads libraries, which is not part of this test
  std::fenv_t before;
  ASSERT_EQ(std::fegetenv(&before), 0);
  std::feclearexcept(FE_ALL_EXCEPT);
  std::fesetround(FE_TONEAREST);
  live();
  EXPECT_EQ(std::fetestexcept(kTraps), 0);
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
  volatile double tiny = std::numeric_limits<double>::min();
  EXPECT_GT(tiny / 2, 0) << "denormals are flushed";
  std::fesetenv(&before);
}

// lockstep must not raise floating-point exceptions if the host program traps them.
TEST(LeftAlone, FloatingPointTraps) {
  EXPECT_EQ(in_child([] {
              ::feenableexcept(kTraps);
              live();
              EXPECT_EQ(::fegetexcept(), kTraps);
            }),
            0);
  const int control = in_child([] {
    ::signal(SIGFPE, SIG_DFL);
    ::feenableexcept(kTraps);
    volatile double zero = 0;
    volatile double infinite = 1 / zero;
    static_cast<void>(infinite);
  });
  EXPECT_FALSE(WIFEXITED(control) && WEXITSTATUS(control) == 0) << "a division by zero is trapped";
}

// lockstep must not change the host program's rounding mode or its flushing of denormals.
TEST(LeftAlone, RoundingAndDenormals) {
  live();
  std::fenv_t before;
  ASSERT_EQ(std::fegetenv(&before), 0);
  for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO, FE_TONEAREST}) {
    std::fesetround(rounding);
    live();
    EXPECT_EQ(std::fegetround(), rounding);
  }
#if defined(__SSE2__)
  constexpr unsigned kFlags = 0x3F;
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  for (const unsigned bits : {kFlushToZero, kFlushToZero | kDenormalsAreZero}) {
    _mm_setcsr(_mm_getcsr() | bits);
    const unsigned set = _mm_getcsr() & ~kFlags;
    live();
    EXPECT_EQ(_mm_getcsr() & ~kFlags, set);
    std::fesetenv(&before);
  }
#endif
  std::fesetenv(&before);
}

/// Returns the contents of every file below a folder, by name.
std::map<std::string, std::string> files_below(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      std::ifstream in(entry.path(), std::ios::binary);
      files[std::filesystem::relative(entry.path(), folder).string()] = {std::istreambuf_iterator<char>(in), {}};
    }
  }
  return files;
}

/// Saves states under the current locale, and returns the files.
std::map<std::string, std::string> saved_states() {
  const std::string folder = temporary("states");
  std::filesystem::create_directories(folder);
  live(folder);
  std::map<std::string, std::string> files = files_below(folder);
  EXPECT_FALSE(files.empty());
  std::filesystem::remove_all(folder);
  return files;
}

/// Sets a locale with a decimal comma, for example Germany's. Makes such a locale if the system has none. Returns its
/// name, or "" if this is not possible.
std::string set_comma_locale() {
  for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8"}) {
    if (std::setlocale(LC_ALL, name) != nullptr) {
      return name;
    }
  }
  const std::string folder = temporary("locale");
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/source")
      << "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3\nEND LC_NUMERIC\n";
  const std::string command = "localedef -c -i " + folder + "/source " + folder + "/comma >/dev/null 2>&1";
  static_cast<void>(std::system(command.c_str()));  // status not used: localedef also reports missing categories
  ::setenv("LOCPATH", folder.c_str(), 1);
  const bool set = std::setlocale(LC_NUMERIC, "comma") != nullptr;
  ::unsetenv("LOCPATH");
  std::filesystem::remove_all(folder);
  return set ? "comma" : "";
}

TEST(LeftAlone, DecimalCommaOfTheLocale) {
  const auto expected = saved_states();
  const std::string name = set_comma_locale();
  if (name.empty()) {
    GTEST_SKIP() << "the system has no locale with a decimal comma, and no localedef";
  }
  char text[8];
  std::snprintf(text, sizeof text, "%.1f", 0.5);
  EXPECT_STREQ(text, "0,5");
  const std::string before = std::setlocale(LC_ALL, nullptr);
  EXPECT_TRUE(saved_states() == expected);
  EXPECT_EQ(std::setlocale(LC_ALL, nullptr), before);
  std::setlocale(LC_ALL, "C");
}

// A C++ host program may set a global locale with a decimal comma. Saved files must not change.
TEST(LeftAlone, DecimalCommaOfStreams) {
  struct Comma final : std::numpunct<char> {
    [[nodiscard]] char do_decimal_point() const override { return ','; }
    [[nodiscard]] char do_thousands_sep() const override { return '.'; }
    [[nodiscard]] std::string do_grouping() const override { return "\1"; }
  };
  const auto expected = saved_states();
  const std::locale own(std::locale::classic(), new Comma);
  const std::locale before = std::locale::global(own);
  std::ostringstream text;
  text << 12.5;
  EXPECT_EQ(text.str(), "1.2,5");
  EXPECT_TRUE(saved_states() == expected);
  EXPECT_TRUE(std::locale() == own);
  std::locale::global(before);
}

TEST(LeftAlone, SignalHandlersAndMask) {
  live();
  std::vector<struct sigaction> before(NSIG);
  for (int signal = 1; signal < NSIG; ++signal) {
    sigaction(signal, nullptr, &before[static_cast<std::size_t>(signal)]);
  }
  sigset_t own, was, is_now;
  sigemptyset(&own);
  sigaddset(&own, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &own, nullptr);
  pthread_sigmask(SIG_SETMASK, nullptr, &was);
  live();
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction after {};
    sigaction(signal, nullptr, &after);
    EXPECT_EQ(after.sa_handler, before[static_cast<std::size_t>(signal)].sa_handler) << "signal " << signal;
    EXPECT_EQ(after.sa_flags, before[static_cast<std::size_t>(signal)].sa_flags) << "signal " << signal;
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &is_now);
  for (int signal = 1; signal < NSIG; ++signal) {
    EXPECT_EQ(sigismember(&is_now, signal), sigismember(&was, signal)) << "signal " << signal;
  }
  pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
}

TEST(LeftAlone, Affinity) {
  cpu_set_t all, one, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) {
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      break;
    }
  }
  for (const cpu_set_t& set : {all, one}) {
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
    live();
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&set, &after));
  }
  sched_setaffinity(0, sizeof all, &all);
}

TEST(LeftAlone, MaskOfFilesFolderEnvironmentAndRandomNumbers) {
  live();
  const mode_t mask = ::umask(027);
  const std::string folder = std::filesystem::current_path();
  std::vector<std::string> environment;
  for (char** each = environ; *each != nullptr; ++each) {
    environment.emplace_back(*each);
  }
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto files = open_files();
  std::srand(7);
  const int drawn[] = {std::rand(), std::rand()};
  std::srand(7);
  EXPECT_EQ(std::rand(), drawn[0]);
  live();
  EXPECT_EQ(std::rand(), drawn[1]);
  EXPECT_EQ(open_files(), files);
  EXPECT_EQ(std::filesystem::current_path(), folder);
  std::size_t i = 0;
  for (char** each = environ; *each != nullptr; ++each, ++i) {
    ASSERT_LT(i, environment.size()) << *each;
    EXPECT_EQ(*each, environment[i]);
  }
  EXPECT_EQ(i, environment.size());
  EXPECT_EQ(::umask(mask), mode_t{027});
}

// In a process without standard input, output and error, new files get the numbers 0 to 2. lockstep must print nothing,
// because the text would be written to such a file.
TEST(LeftAlone, NothingIsPrintedAndClosedOutputsAreFine) {
  const std::string path = temporary("silent");
  EXPECT_EQ(in_child([&path] {
              ::close(1);
              ::close(2);
              const int out = ::open(path.c_str(), O_CREAT | O_RDWR | O_TRUNC, 0600);
              const int err = ::open(path.c_str(), O_RDWR | O_APPEND);
              live();
              const bool silent = out == 1 && err == 2 && std::filesystem::file_size(path) == 0;
              ::close(0);
              ::close(1);
              ::close(2);
              live();  // must also work with closed descriptors
              EXPECT_TRUE(silent);
            }),
            0);
  std::filesystem::remove(path);
}

// A context has its own number of threads. The OpenMP settings of the host program must not change.
TEST(LeftAlone, ThreadsOfOpenMp) {
  const auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  const auto get = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  const auto dynamic = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_dynamic"));
  const auto levels = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_active_levels"));
  if (set == nullptr || get == nullptr || dynamic == nullptr || levels == nullptr) {
    GTEST_SKIP() << "this build has no OpenMP";
  }
  const int before = get();
  const int was_dynamic = dynamic();
  const int were_levels = levels();
  set(3);
  for (const std::int32_t threads : {1, 2, 0}) {
    live({}, threads);
    EXPECT_EQ(get(), 3) << "a context with " << threads << " threads";
    EXPECT_EQ(dynamic(), was_dynamic);
    EXPECT_EQ(levels(), were_levels);
  }
  set(before);
}

}  // namespace
}  // namespace host
