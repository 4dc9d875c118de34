// SPDX-License-Identifier: Apache-2.0
// The page of `cupool report --html` as text: nothing of a report is taken for HTML, charts show
// what there is, and no report makes a page that nobody can open. page_test.py opens it in a
// browser.
#include <algorithm>
#include <map>
#include <regex>

#include "cli/page/charts.h"
#include "cli/page/html.h"
#include "cli/page/svg.h"
#include "command.h"
#include "example_report.h"
#include "stats/labels.h"

namespace cli {
namespace {

using cupool::cli::html_page;
using cupool::cli::Report;
using nlohmann::json;
using preload::contains;

TEST(Page, EscapesEveryTextOfAReport) {
  const std::string hostile = "\"'></title><script>x</script>&{{content}}\x01";
  json report = example_report();
  for (const char* place :
       {"/process/program_path", "/process/host", "/process/rank", "/devices/0/name",
        "/settings/0/name", "/settings/0/value", "/free_mode", "/backend", "/cupool_version"}) {
    report[json::json_pointer(place)] = hostile;
  }
  report["settings"].push_back(
      {{"name", hostile}, {"value", hostile}, {"origin", hostile}, {"is_default", false}});
  report["suggested_settings"][hostile] = hostile;
  report["threads"] = {{{"tid", 1}, {"name", hostile}, {"malloc_calls_total", 1}}};
  report["leaks"] = {
      {"sites",
       {{{"device", 0},
         {"blocks", 3},
         {"bytes", 9000},
         {"frames", {{{"module", hostile}, {"offset", 255}, {"symbol", hostile}}}}}}}};
  report["events"] = {{{"time_ns", 1}, {"kind", hostile}, {"device", 0}, {"count", 1}}};
  for (const std::vector<Report>& reports :
       {std::vector<Report>{parsed(report)}, std::vector<Report>{parsed(report), parsed(report)}}) {
    const std::string page = html_page(reports);
    EXPECT_FALSE(contains(page, "<script"));
    EXPECT_FALSE(contains(page, "'>"));
    EXPECT_FALSE(contains(page, "\x01"));
    EXPECT_TRUE(contains(page, "&lt;script&gt;x&lt;/script&gt;&amp;{{content}}"));
  }
}

TEST(Page, NamesNothingOutsideItself) {
  const std::string page = html_page({parsed(example_report())});
  for (const char* outside : {"http:", "https:", "src=", "@import", "url("}) {
    EXPECT_FALSE(contains(page, outside)) << outside;
  }
  EXPECT_TRUE(contains(page, "Content-Security-Policy\" content=\"default-src 'none'"));
}

TEST(Page, IsTheSameForTheSameReports) {
  EXPECT_EQ(html_page({parsed(example_report())}), html_page({parsed(example_report())}));
}

TEST(Page, HoldsWithoutDevicesAndWithExtremeFigures) {
  json report = example_report();
  report["devices"] = json::array();
  EXPECT_TRUE(contains(html_page({parsed(report)}), "</html>"));
  report = example_report();
  for (json& counter : report["devices"][0]["counters"]) counter = UINT64_MAX;
  for (json& gauge : report["devices"][0]["gauges"]) {
    gauge = {{"current", INT64_MIN}, {"peak", INT64_MAX}};
  }
  report["devices"][0]["times"]["malloc"]["max_ns"] = UINT64_MAX;
  report["devices"][0]["times"]["malloc"]["buckets"] = {
      {{"upper_bound_ns", UINT64_MAX}, {"count", UINT64_MAX}}};
  const std::string page = html_page({parsed(report)});
  EXPECT_FALSE(contains(page, "nan"));
  EXPECT_FALSE(contains(page, "inf\""));
}

TEST(Page, ListsEveryEventThatWasCounted) {
  using cupool::stats::Counter;
  for (const Counter counter :
       {Counter::growth_total, Counter::returned_blocks_total, Counter::trims_total,
        Counter::oom_rescues_total, Counter::neighbours_asked_total,
        Counter::given_to_neighbours_bytes_total, Counter::fences_total,
        Counter::context_lost_bytes_total, Counter::ipc_exports_total, Counter::ipc_imports_total,
        Counter::own_async_malloc_calls_total, Counter::own_async_served_total,
        Counter::own_async_free_calls_total, Counter::managed_malloc_calls_total,
        Counter::array_calls_total, Counter::host_malloc_calls_total, Counter::host_served_total,
        Counter::host_free_waits_total, Counter::synchronize_calls_total}) {
    const std::string row =
        "<th scope=\"row\">" +
        cupool::cli::escape_html(std::string(cupool::stats::label_of(counter))) + "</th>";
    json report = example_report();
    json& count = report["devices"][0]["counters"][cupool::stats::key_of(counter)];
    count = 0;
    EXPECT_FALSE(contains(html_page({parsed(report)}), row)) << row;
    count = 7;
    EXPECT_TRUE(contains(html_page({parsed(report)}), row)) << row;
  }
}

// A report with a time series of one device, each figure the same all the time.
Report with_series(const std::map<std::string, std::uint64_t>& figures) {
  json device = {{"ordinal", 0}};
  for (const auto& [key, value] : figures) device[key] = value;
  json report = example_report();
  report["series"] = {
      {"samples",
       {{{"time_ns", 0}, {"devices", {device}}}, {{"time_ns", 1000000}, {"devices", {device}}}}}};
  return parsed(report);
}

std::string memory_chart_of(const Report& report) {
  return cupool::cli::memory_chart("m", report, report.devices[0],
                                   cupool::cli::scales_of({report}));
}

struct PlacedText {
  double left, right, y;
  std::string text;
};

// The texts of a chart that begin at their place, as the legend's do.
std::vector<PlacedText> texts_of(const std::string& chart) {
  std::vector<PlacedText> texts;
  const std::regex element("<text x=\"([0-9.]+)\" y=\"([0-9.]+)\" text-anchor=\"start\">([^<]*)");
  for (std::sregex_iterator at(chart.begin(), chart.end(), element), end; at != end; ++at) {
    const double left = std::stod((*at)[1]);
    const std::string text = (*at)[3];
    texts.push_back({left, left + cupool::cli::text_width(text), std::stod((*at)[2]), text});
  }
  return texts;
}

TEST(MemoryChart, TheLegendHoldsWhatLiesBeyondThePicture) {
  constexpr std::uint64_t gib = std::uint64_t{1} << 30;
  const Report report = with_series({{"application_bytes", 1000},
                                     {"passthrough_bytes", 500},
                                     {"pool_reserved_bytes", 80 * gib},
                                     {"device_free_bytes", gib},
                                     {"device_total_bytes", 141 * gib}});
  const std::string chart = memory_chart_of(report);
  const std::vector<PlacedText> texts = texts_of(chart);
  ASSERT_EQ(texts.size(), 7u) << chart;
  EXPECT_EQ(texts[5].text, "pool reserved: up to 80.0 GiB, off the chart");
  EXPECT_EQ(texts[6].text, "used on the device: up to 140 GiB, off the chart");
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_LE(texts[i].right, 1060) << texts[i].text;
    for (std::size_t k = 0; k < i; ++k) {
      const bool apart = texts[k].y != texts[i].y || texts[k].right + 12 <= texts[i].left;
      EXPECT_TRUE(apart) << texts[k].text << " / " << texts[i].text;
    }
  }
  // The picture begins below its legend: the highest line of the grid is there.
  const std::regex grid("<line x1=\"84\" y1=\"([0-9.]+)\"");
  for (std::sregex_iterator at(chart.begin(), chart.end(), grid), end; at != end; ++at) {
    EXPECT_GT(std::stod((*at)[1]), texts.back().y);
  }
}

TEST(MemoryChart, ShowsWhatIsPassedThrough) {
  const std::map<std::string, std::uint64_t> none = {{"application_bytes", 1000},
                                                     {"passthrough_bytes", 0}};
  std::map<std::string, std::uint64_t> some = none;
  some["passthrough_bytes"] = 3000;
  const Report without = with_series(none);
  const Report with = with_series(some);
  EXPECT_FALSE(contains(memory_chart_of(without), "c-passed"));
  const std::string chart = memory_chart_of(with);
  EXPECT_TRUE(contains(chart, ">served by the driver<")) << chart;
  EXPECT_TRUE(contains(chart, "class=\"c-passed\"")) << chart;
  EXPECT_TRUE(contains(chart, "served by the driver 2.93 KiB")) << "the tip too: " << chart;
  EXPECT_TRUE(contains(chart, ">3.00 KiB<")) << "the axis has room for it";
}

// The places of the ticks are those of the labels: equal labels, equal axes.
std::vector<std::string> ticks_of(const std::string& chart) {
  std::vector<std::string> ticks;
  const std::regex tick("<text [^>]*class=\"tick\">[^<]*");
  for (std::sregex_iterator at(chart.begin(), chart.end(), tick), end; at != end; ++at) {
    ticks.push_back(at->str());
  }
  return ticks;
}

TEST(Charts, OfAPageHaveOneScale) {
  json small = example_report();
  small["events"] = {
      {{"time_ns", 1}, {"kind", "trim"}, {"device", 0}, {"count", 1}, {"duration_ns", 0}}};
  small["devices"][0]["requested_sizes"] = {{{"upper_bound_bytes", 1024}, {"count", 5}}};
  json large = small;
  large["devices"][0]["requested_sizes"] = {{{"upper_bound_bytes", 65536}, {"count", 5000}}};
  large["devices"][0]["times"]["malloc"]["max_ns"] = 900000000;
  large["devices"][0]["gauges"]["held_bytes"]["peak"] = 1073741824;
  large["process"]["end_wall_ns"] = 9000000000;
  const std::vector<Report> reports = {parsed(small), parsed(large)};
  const cupool::cli::Scales scales = cupool::cli::scales_of(reports);
  const auto charts = [&scales](const Report& report) {
    const auto& device = report.devices[0];
    return std::vector<std::string>{
        peaks_chart("a", report, device, scales), sizes_chart("b", device, scales),
        latency_chart("c", times_of(device), scales), events_chart("d", report, scales)};
  };
  const std::vector<std::string> first = charts(reports[0]);
  const std::vector<std::string> second = charts(reports[1]);
  for (std::size_t i = 0; i < first.size(); ++i) {
    std::vector<std::string> of_first = ticks_of(first[i]);
    std::vector<std::string> of_second = ticks_of(second[i]);
    const auto is_mark = [](const std::string& tick) {  // the names of the percentiles
      return contains(tick, ">p") || contains(tick, ">max");
    };
    of_first.erase(std::remove_if(of_first.begin(), of_first.end(), is_mark), of_first.end());
    of_second.erase(std::remove_if(of_second.begin(), of_second.end(), is_mark), of_second.end());
    EXPECT_GT(of_first.size(), 2u);
    EXPECT_EQ(of_first, of_second) << i;
  }
  const Report low = with_series({{"application_bytes", 1000}});
  const Report high = with_series({{"application_bytes", 900000}});
  const cupool::cli::Scales both = cupool::cli::scales_of({low, high});
  EXPECT_EQ(ticks_of(memory_chart("m", low, low.devices[0], both)),
            ticks_of(memory_chart("m", high, high.devices[0], both)));
}

TEST(Page, KeepsAFigureAndItsUnitTogether) {
  using cupool::cli::prose_html;
  EXPECT_EQ(prose_html("took 18.0 ms in all"), "took 18.0\xc2\xa0ms in all");
  EXPECT_EQ(prose_html("(2.7 %), 16.0 GiB."), "(2.7\xc2\xa0%), 16.0\xc2\xa0GiB.");
  EXPECT_EQ(prose_html("4 sets & 12 "), "4 sets &amp; 12 ");
}

TEST(Page, StaysReadableWithManyEventsAndRows) {
  json report = example_report();
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    report["events"].push_back({{"time_ns", i * (UINT64_MAX / 10'000)},
                                {"kind", "kind" + std::to_string(i % 1000)},
                                {"device", 0},
                                {"count", 1},
                                {"bytes", UINT64_MAX},
                                {"duration_ns", UINT64_MAX}});
    report["threads"].push_back({{"tid", i}, {"name", "worker"}});
  }
  const std::string page = html_page({parsed(report)});
  EXPECT_LT(page.size(), 2u << 20);
  EXPECT_TRUE(contains(page, ">other kinds<"));
  EXPECT_TRUE(contains(page, "6,001 more rows are in the JSON report"));
}

TEST(Page, ChartsTheBusiestOfManyDevices) {
  json report = example_report();
  const json device = report["devices"][0];
  for (int i = 1; i < 3000; ++i) {
    report["devices"].push_back(device);
    report["devices"][i]["ordinal"] = i;
    report["devices"][i]["counters"]["malloc_calls_total"] = 1000 + i;
  }
  const std::string page = html_page({parsed(report)});
  EXPECT_LT(page.size(), 4u << 20);
  EXPECT_TRUE(contains(page, "2,984 devices with fewer allocations are not shown"));
  EXPECT_TRUE(contains(page, "<h3>Device 2999: GPU"));
  EXPECT_FALSE(contains(page, "<h3>Device 2983: GPU"));
  EXPECT_TRUE(contains(page, ">Device 7: GPU")) << "the table has all";
}

TEST(Page, ShowsOutliersAndTheBusiestOfManyProcesses) {
  std::vector<Report> reports;
  for (int i = 0; i < 300; ++i) {
    json report = example_report();
    report["process"]["rank"] = std::to_string(i);
    report["devices"][0]["counters"]["malloc_calls_total"] = i == 7 ? 1 : 100000 + i;
    reports.push_back(parsed(report));
  }
  const std::string page = html_page(reports);
  EXPECT_LT(page.size(), 8u << 20);
  EXPECT_TRUE(contains(page, "Of 300 processes 64 are shown"));
  for (const char* rank : {"rank 7 on", "rank 299 on"}) {
    EXPECT_TRUE(contains(page, std::string("<summary>") + rank)) << rank;
  }
  EXPECT_FALSE(contains(page, "<summary>rank 8 on"));
  EXPECT_TRUE(contains(page, "<th scope=\"row\">rank 7 on"));
  EXPECT_FALSE(contains(page, "<th scope=\"row\">rank 8 on")) << "the distribution has it";
  EXPECT_TRUE(contains(page, "median of 300"));
}

TEST(Svg, CoordinatesAreShortAndWithoutLocale) {
  EXPECT_EQ(cupool::cli::coordinate(0), "0");
  EXPECT_EQ(cupool::cli::coordinate(12.345), "12.35");
  EXPECT_EQ(cupool::cli::coordinate(12.5), "12.5");
  EXPECT_EQ(cupool::cli::coordinate(-0.25), "-0.25");
  EXPECT_EQ(cupool::cli::coordinate(0.0 / 0.0), "0");
}

}  // namespace
}  // namespace cli
