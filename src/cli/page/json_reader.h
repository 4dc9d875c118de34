// SPDX-License-Identifier: Apache-2.0
// Typed access to one object of a JSON report. Null counts as absent; a value of the wrong type is
// an error that names file and key.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cupool::cli {

/// Refers to `json`, which must outlive it. All members throw ReportError for a wrong type.
class JsonReader {
 public:
  /// `path`: the object's place in the file, for messages: "" or "devices[0].".
  JsonReader(const nlohmann::json& json, std::string file, std::string path);

  bool has(const char* key) const;
  std::uint64_t number(const char* key) const;                          ///< 0 if absent
  std::int64_t signed_number(const char* key) const;                    ///< 0 if absent
  bool flag(const char* key) const;                                     ///< false if absent
  std::string text(const char* key) const;                              ///< "" if absent
  JsonReader object(const char* key) const;                             ///< must exist
  std::vector<JsonReader> array(const char* key) const;                 ///< of objects
  std::vector<std::uint64_t> whole_numbers(const char* key) const;      ///< of numbers
  std::vector<std::string> words(const char* key) const;                ///< of texts
  std::map<std::string, std::uint64_t> numbers(const char* key) const;  ///< object of numbers
  std::map<std::string, std::string> texts(const char* key) const;      ///< object of texts
  std::map<std::string, std::uint64_t> own_numbers() const;  ///< the members that are numbers
  std::vector<std::string> keys() const;

  /// Throws a ReportError: `key` is not `expected`.
  [[noreturn]] void fail(const std::string& key, const char* expected) const;

 private:
  const nlohmann::json* find(const char* key) const;
  const nlohmann::json* array_at(const char* key) const;
  std::uint64_t number_in(const nlohmann::json& value, const std::string& key) const;

  const nlohmann::json* json_;
  std::string file_;
  std::string path_;
};

}  // namespace cupool::cli
