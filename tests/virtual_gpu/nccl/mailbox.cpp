#include "mailbox.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace lockstep::nccl_standin {

Mailbox::Mailbox(std::string folder) : folder_(std::move(folder)) {
  std::filesystem::create_directories(folder_);
}

void Mailbox::put(const std::string& name, std::string_view head, const std::vector<std::byte>& bytes) const {
  const std::string unfinished = path(name) + ".unfinished";
  std::ofstream out(unfinished, std::ios::binary);
  out << head;
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) {
    throw std::runtime_error(unfinished + " cannot be written");
  }
  std::filesystem::rename(unfinished, path(name));
}

bool Mailbox::has(const std::string& name) const {
  return std::filesystem::exists(path(name));
}

std::pair<std::string, std::vector<std::byte>> Mailbox::get(const std::string& name) const {
  std::ifstream in(path(name), std::ios::binary);
  const std::string all(std::istreambuf_iterator<char>(in), {});
  if (!in) {
    throw std::runtime_error(path(name) + " cannot be read");
  }
  const std::size_t end = all.find('\n') + 1;  // 0 if there is no head
  const auto* begin = reinterpret_cast<const std::byte*>(all.data());
  return {all.substr(0, end), {begin + end, begin + all.size()}};
}

}  // namespace lockstep::nccl_standin
