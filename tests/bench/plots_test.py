# SPDX-License-Identifier: Apache-2.0
"""scripts/plots.py on a made-up raw.csv: what it reads out of it, and that it draws every picture.

plots_test.py read | draw; draw leaves with 77 where matplotlib is missing.
"""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
import plots  # noqa: E402  (the path must be set first)

MADE_UP = """section,program,variant,run,metric,value
single,pairs cudart=shared threads=1 size=512 streams=0,cupool,0,ns_per_pair,10
single,pairs cudart=shared threads=1 size=512 streams=0,cupool,1,ns_per_pair,30
single,pairs cudart=shared threads=1 size=512 streams=0,cupool,2,ns_per_pair,14
single,pairs cudart=shared threads=1 size=65536 streams=0,cupool,0,ns_per_pair,20
single,pairs cudart=shared threads=1 size=65536 streams=0,legacy,0,ns_per_pair,7000
single,pairs cudart=shared threads=1 sizes=mixed blocks=16 streams=0,cupool,0,ns_per_pair,99
route,pairs cudart=static threads=1 size=65536 streams=0,cupool,0,ns_per_pair,88
threads,pairs cudart=shared threads=2 sizes=mixed blocks=16 streams=0,cub,0,pairs_per_second,1e6
threads,pairs cudart=shared mode=producer threads=2 sizes=mixed streams=0,cub,0,pairs_per_second,9e6
calls,pairs cudart=shared threads=1 sizes=mixed blocks=16 streams=0 curve=1,async,0,malloc_samples,6
calls,pairs cudart=shared threads=1 sizes=mixed blocks=16 streams=0 curve=1,async,0,malloc_tail1_ns,300
calls,pairs cudart=shared threads=1 sizes=mixed blocks=16 streams=0 curve=1,async,0,malloc_tail2_ns,500
calls,pairs cudart=shared threads=1 sizes=mixed blocks=16 streams=0 curve=1,async,0,malloc_tail3_ns,900
calls,pairs cudart=shared threads=1 sizes=mixed blocks=16 streams=4 curve=1,async,0,malloc_tail1_ns,1
programs,"torch, own allocator",legacy,0,ms_per_step,16
programs,"torch, cupool",auto,0,ms_per_step,12
programs,"cupy, cupool",cupool,0,us_per_step,300
programs,demo,legacy,0,p99_us,800
programs,demo,cupool,0,p99_us,200
programs,demo,cupool,0,median_us,1
"""


def rows_of(text, folder):
    with open(os.path.join(folder, "raw.csv"), "w", encoding="utf-8") as file:
        file.write(text)
    return plots.read(os.path.join(folder, "raw.csv"))


class Reading(unittest.TestCase):
    def setUp(self):
        with tempfile.TemporaryDirectory() as folder:
            self.rows = rows_of(MADE_UP, folder)

    def test_knows_the_results_of_pairs_from_others(self):
        self.assertTrue(plots.is_of_pairs(self.rows))
        self.assertFalse(plots.is_of_pairs(self.rows[-6:]))

    def test_sizes_leave_out_mixed_and_static(self):
        self.assertEqual(plots.by_size(self.rows), {"cupool": {"512": [10, 30, 14], "65536": [20]},
                                                    "legacy": {"65536": [7000]}})

    def test_a_curve_is_the_median_with_what_lies_around_it(self):
        x, middle, (below, above) = plots.curve(plots.by_size(self.rows)["cupool"])
        self.assertEqual((x, middle, below, above), ([512, 65536], [14, 20], [4, 0], [16, 0]))

    def test_threads_leave_out_producers(self):
        self.assertEqual(plots.by_threads(self.rows), {"cub": {"2": [1e6]}})

    def test_a_tail_ends_where_the_samples_do(self):
        self.assertEqual(plots.tails(self.rows, "malloc"), {"async": [(0.5, 300), (0.25, 500)]})
        self.assertEqual(plots.tails(self.rows, "free"), {})

    def test_ratios_need_the_base(self):
        self.assertEqual(plots.program_ratios(self.rows),
                         {"torch": {"own allocator": 1.0, "cupool": 0.75},
                          "demo": {"legacy": 1.0, "cupool": 0.25}})


class Drawing(unittest.TestCase):
    def test_draws_every_picture_the_same_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            rows = rows_of(MADE_UP, folder)
            contents = []
            for _ in range(2):
                written = plots.draw(folder, rows, "svg")
                self.assertEqual([os.path.basename(path) for path in written],
                                 [f"{name}.svg" for name in plots.PICTURES])
                contents.append([open(path, encoding="utf-8").read() for path in written])
            self.assertEqual(contents[0], contents[1])
            for text in contents[0]:
                self.assertIn("</svg>", text)

    def test_draws_nothing_of_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(plots.draw(folder, [], "svg"), [])


def main():
    case = {"read": Reading, "draw": Drawing}[sys.argv[1]]
    if case is Drawing:
        try:
            import matplotlib
        except ImportError:
            print("skipped: matplotlib is not installed")
            return 77
        print(f"matplotlib {matplotlib.__version__}")
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


sys.exit(main())
