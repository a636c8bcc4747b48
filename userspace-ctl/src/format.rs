// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Numbers and tables for people.

use std::fmt;
use std::time::Duration;

/// Prints a number of bytes with a binary unit: `512 B`, `3.4 MiB`.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        // 1023.95 would print as 1024.0.
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let text = if unit == 0 {
            format!("{} B", self.0)
        } else {
            format!("{:.1} {}", value, UNITS[unit])
        };
        f.pad(&text)
    }
}

/// Prints a duration in seconds or milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Elapsed(pub Duration);

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if seconds < 1.0 {
            f.pad(&format!("{:.1} ms", seconds * 1e3))
        } else {
            f.pad(&format!("{:.2} s", seconds))
        }
    }
}

/// `part` of `whole` as a percentage; a dash when there is no whole.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.1}%", part as f64 * 100.0 / whole as f64)
}

/// `1 page`, `2 pages`.
pub fn count(number: u64, noun: &str) -> String {
    match (number, noun) {
        (1, _) => format!("1 {noun}"),
        (_, "entry") => format!("{number} entries"),
        (_, "process") => format!("{number} processes"),
        _ => format!("{number} {noun}s"),
    }
}

/// Columns for people: text to the left, columns marked with `>` in the header to the right.
#[derive(Clone, Debug)]
pub struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
    indent: usize,
}

impl Table {
    /// A table with these headers; a header that begins with `>` makes its column flush right.
    pub fn new(headers: &[&str]) -> Self {
        Table {
            right: headers.iter().map(|h| h.starts_with('>')).collect(),
            rows: vec![headers
                .iter()
                .map(|h| h.trim_start_matches('>').to_owned())
                .collect()],
            indent: 0,
        }
    }

    /// Indents every line by this many spaces.
    pub fn indented(mut self, spaces: usize) -> Self {
        self.indent = spaces;
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                if column > 0 {
                    line.push_str("  ");
                }
                line.push_str(&if self.right[column] {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                });
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn elapsed() {
        assert_eq!(Elapsed(Duration::from_micros(1500)).to_string(), "1.5 ms");
        assert_eq!(Elapsed(Duration::from_millis(2300)).to_string(), "2.30 s");
    }

    #[test]
    fn table_aligns_both_ways() {
        let mut table = Table::new(&["NAME", ">N"]).indented(2);
        table.row(["a".to_owned(), "1".to_owned()]);
        table.row(["longer".to_owned(), "100".to_owned()]);
        assert_eq!(
            table.to_string(),
            "  NAME      N\n  a         1\n  longer  100\n"
        );
    }

    #[test]
    fn percentages_and_counts() {
        assert_eq!(percent(1, 0), "-");
        assert_eq!(percent(1, 8), "12.5%");
        assert_eq!(count(1, "entry"), "1 entry");
        assert_eq!(count(2, "entry"), "2 entries");
        assert_eq!(count(0, "page"), "0 pages");
    }
}
