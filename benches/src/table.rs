//! A table that reads well on a terminal and is Markdown.

use std::fmt;

/// A table: a heading row, and rows below it.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these columns.
    #[must_use]
    pub fn new(columns: &[&str]) -> Self {
        Self { rows: vec![columns.iter().map(|&column| column.to_owned()).collect()] }
    }

    /// One more row; missing cells stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut row: Vec<_> = cells.into_iter().collect();
        row.resize(self.rows[0].len(), String::new());
        self.rows.push(row);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(3);
        let widths: Vec<_> = (0..self.rows[0].len()).map(width).collect();
        for (number, row) in self.rows.iter().enumerate() {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                // Numbers stand to the right, their names to the left.
                if column == 0 { write!(f, "| {cell:<width$} ")? } else { write!(f, "| {cell:>width$} ")? }
            }
            writeln!(f, "|")?;
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let dashes = "-".repeat(width - 1);
                    if column == 0 { write!(f, "| {dashes}- ")? } else { write!(f, "| {dashes}: ")? }
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_markdown_with_aligned_columns() {
        let mut table = Table::new(&["step", "ms"]);
        table.row(["clock".to_owned(), "0.001".to_owned()]);
        table.row(["irq".to_owned()]);
        let text = "| step  |    ms |\n| ----- | ----: |\n| clock | 0.001 |\n| irq   |       |\n";
        assert_eq!(table.to_string(), text);
    }
}
