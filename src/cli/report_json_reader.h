// One object of a JSON report, read by key: absent and null are the same, and a value of the wrong
// type is an error that names file and key.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cupool::cli {

/// Refers to the object; that has to live as long. All members throw ReportError for wrong types.
class JsonReader {
 public:
  /// `path` is where in the file the object stands, for messages: "" or "devices[0].".
  JsonReader(const nlohmann::json& json, std::string file, std::string path);

  bool has(const char* key) const;
  std::uint64_t number(const char* key) const;           ///< 0 where it is absent
  std::int64_t signed_number(const char* key) const;     ///< 0 where it is absent
  bool flag(const char* key) const;                      ///< false where it is absent
  std::string text(const char* key) const;               ///< "" where it is absent
  JsonReader object(const char* key) const;              ///< has to be there
  std::vector<JsonReader> array(const char* key) const;  ///< of objects
  std::vector<std::vector<std::uint64_t>> rows(const char* key) const;  ///< of arrays of numbers
  std::vector<std::uint64_t> list(const char* key) const;               ///< of numbers
  std::vector<std::string> words(const char* key) const;                ///< of texts
  std::map<std::string, std::uint64_t> numbers(const char* key) const;  ///< object of numbers
  std::map<std::string, std::string> texts(const char* key) const;      ///< object of texts
  std::map<std::string, std::uint64_t> own_numbers() const;  ///< the members that are numbers
  std::vector<std::string> keys() const;

 private:
  const nlohmann::json* find(const char* key) const;
  const nlohmann::json* array_at(const char* key) const;
  [[noreturn]] void fail(const std::string& key, const char* expected) const;
  std::uint64_t number_in(const nlohmann::json& value, const std::string& key) const;

  const nlohmann::json* json_;
  std::string file_;
  std::string path_;
};

}  // namespace cupool::cli
