// SPDX-License-Identifier: Apache-2.0
// Each failure names the file, the key and the expected type.
#include "cli/page/json_reader.h"

#include <limits>
#include <utility>

#include "cli/page/model.h"

namespace cupool::cli {

JsonReader::JsonReader(const nlohmann::json& json, std::string file, std::string path)
    : json_(&json), file_(std::move(file)), path_(std::move(path)) {
  if (!json_->is_object()) {
    throw ReportError(file_ + ": " + (path_.empty() ? "the report" : path_) + " is not an object");
  }
}

void JsonReader::fail(const std::string& key, const char* expected) const {
  throw ReportError(file_ + ": " + path_ + key + " is not " + expected);
}

const nlohmann::json* JsonReader::find(const char* key) const {
  const auto found = json_->find(key);
  return found == json_->end() || found->is_null() ? nullptr : &*found;
}

bool JsonReader::has(const char* key) const {
  return find(key) != nullptr;
}

std::uint64_t JsonReader::number_in(const nlohmann::json& value, const std::string& key) const {
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0) {
    fail(key, "a number from 0 up");
  }
  return static_cast<std::uint64_t>(value.get<std::int64_t>());
}

std::uint64_t JsonReader::number(const char* key) const {
  const nlohmann::json* value = find(key);
  return value == nullptr ? 0 : number_in(*value, key);
}

std::int64_t JsonReader::signed_number(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return 0;
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<std::uint64_t>() <=
                         static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  if (!fits) fail(key, "an integer");
  return value->get<std::int64_t>();
}

bool JsonReader::flag(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

std::string JsonReader::text(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return "";
  if (!value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

JsonReader JsonReader::object(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr || !value->is_object()) fail(key, "an object");
  return JsonReader(*value, file_, path_ + key + ".");
}

const nlohmann::json* JsonReader::array_at(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value != nullptr && !value->is_array()) fail(key, "an array");
  return value;
}

std::vector<JsonReader> JsonReader::array(const char* key) const {
  std::vector<JsonReader> members;
  const nlohmann::json* value = array_at(key);
  if (value == nullptr) return members;
  for (const nlohmann::json& member : *value) {
    const std::string index = "[" + std::to_string(members.size()) + "]";
    members.emplace_back(member, file_, path_ + key + index + ".");
  }
  return members;
}

std::vector<std::uint64_t> JsonReader::whole_numbers(const char* key) const {
  std::vector<std::uint64_t> members;
  const nlohmann::json* value = array_at(key);
  if (value == nullptr) return members;
  for (const nlohmann::json& member : *value) {
    members.push_back(number_in(member, std::string(key) + "[]"));
  }
  return members;
}

std::vector<std::string> JsonReader::words(const char* key) const {
  std::vector<std::string> members;
  const nlohmann::json* value = array_at(key);
  if (value == nullptr) return members;
  for (const nlohmann::json& member : *value) {
    if (!member.is_string()) fail(std::string(key) + "[]", "a string");
    members.push_back(member.get<std::string>());
  }
  return members;
}

std::map<std::string, std::uint64_t> JsonReader::numbers(const char* key) const {
  std::map<std::string, std::uint64_t> members;
  if (!has(key)) return members;
  const JsonReader child = object(key);
  for (const std::string& name : child.keys()) members[name] = child.number(name.c_str());
  return members;
}

std::map<std::string, std::string> JsonReader::texts(const char* key) const {
  std::map<std::string, std::string> members;
  if (!has(key)) return members;
  const JsonReader child = object(key);
  for (const std::string& name : child.keys()) members[name] = child.text(name.c_str());
  return members;
}

std::map<std::string, std::uint64_t> JsonReader::own_numbers() const {
  std::map<std::string, std::uint64_t> members;
  for (const auto& [key, value] : json_->items()) {
    const bool whole =
        value.is_number_unsigned() || (value.is_number_integer() && value.get<std::int64_t>() >= 0);
    if (whole) members[key] = number_in(value, key);
  }
  return members;
}

std::vector<std::string> JsonReader::keys() const {
  std::vector<std::string> names;
  for (const auto& member : json_->items()) names.push_back(member.key());
  return names;
}

}  // namespace cupool::cli
