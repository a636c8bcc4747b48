// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Templates from files: what the module takes of them never changes, pages find their bases through
//! ranges, and signatures are compared.

pub mod calls;
pub mod held;
mod hostile;
mod ranges;
pub mod restored;
mod signature;

use super::runner::Test;

macro_rules! test {
    ($module:ident::$f:ident) => {
        Test {
            name: concat!("template_file.", stringify!($f)),
            timeout_s: 60,
            run: $module::$f,
        }
    };
}

/// The tests of this folder.
pub const TESTS: &[Test] = &[
    test!(held::sealed_memfd_costs_nothing),
    test!(held::owner_of_sealed_memfd_exits),
    test!(held::sealed_memfd_under_pressure),
    test!(held::half_sealed_is_copied),
    test!(held::seals_hold),
    test!(held::huge_pages_are_copied),
    test!(held::written_file_is_copied),
    test!(held::truncated_file),
    test!(held::part_of_a_file),
    test!(held::last_page_is_filled_with_zeros),
    test!(ranges::private_mappings_at_other_addresses),
    test!(ranges::anonymous_memory_filled_from_the_file),
    test!(ranges::overlapping_ranges_of_two_processes),
    test!(ranges::ranges_change_under_entries),
    test!(ranges::ranges_of_a_template_from_a_process),
    test!(ranges::without_ranges_nothing_matches),
    test!(hostile::hostile_files),
    test!(hostile::hostile_ranges),
    test!(signature::signatures),
    test!(signature::controller_computes_them),
    test!(signature::earlier_versions_of_the_structures),
    test!(hostile::noise),
];
