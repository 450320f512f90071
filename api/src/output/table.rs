//! Tables of commands that list.

/// Rows of cells, each column as wide as its widest cell.
#[derive(Debug)]
pub(crate) struct Table<const N: usize>(Vec<[String; N]>);

impl<const N: usize> Table<N> {
    /// A table with these headings.
    pub(crate) fn new(headings: [&str; N]) -> Self {
        Self(vec![headings.map(str::to_owned)])
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.0.push(cells);
    }

    pub(crate) fn text(&self) -> String {
        let width = |column: usize| self.0.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..N).map(width).collect();
        let line = |row: &[String; N]| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        self.0.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_is_as_wide_as_its_widest_cell() {
        let mut table = Table::new(["NAME", "END"]);
        table.row(["a-long-name".to_owned(), String::new()]);
        table.row(["b".to_owned(), "0".to_owned()]);
        assert_eq!(table.text(), "NAME         END\na-long-name\nb            0\n");
    }
}
