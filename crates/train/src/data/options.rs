//! The options of a table: how its lines and fields are read, and how its columns become numbers.

use meshtf_tensor::failure::{Failure, Result};

use super::Window;

/// The options for the columns of one placeholder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableOptions {
    /// How the lines are cut into fields.
    pub layout: LayoutOptions,
    /// The character before the fraction of a number; a point unless stated.
    pub decimal: Option<char>,
    /// The character between groups of digits, which is ignored.
    pub thousands: Option<char>,
    /// The treatment of missing fields; without it they are errors.
    pub missing: Option<Missing>,
    /// Fields that are missing, in addition to the usual ones ([`is_missing`](super::is_missing)).
    pub missing_values: Vec<String>,
    /// The columns are classes: text becomes the number of its class.
    pub classes: Option<Classes>,
    /// The columns of text, by name.
    pub categories: Vec<(String, Category)>,
    /// The columns of dates, by name, and the numbers that each becomes.
    pub dates: Vec<(String, Vec<DatePart>)>,
    /// The form of dates, as of `strftime`; else ISO 8601.
    pub date_format: Option<String>,
    /// The normalisation of columns by name, and of those without a name that are numbers.
    pub normalize: Vec<(Option<String>, Normalize)>,
    /// The column is classes, and an example's number is the weight of its class.
    pub class_weights: Option<ClassWeights>,
    /// Examples are windows of rows.
    pub window: Option<Window>,
}

impl TableOptions {
    /// Checks them for these columns.
    ///
    /// # Errors
    /// InvalidArgument for options of a column that is not taken, and for those that exclude each other.
    pub(super) fn check(&self, columns: &[&str]) -> Result<()> {
        let wrong = |why: String| Err(Failure::invalid(why));
        let categories: Vec<&String> = self.categories.iter().map(|(name, _)| name).collect();
        let dates: Vec<&String> = self.dates.iter().map(|(name, _)| name).collect();
        let normalized: Vec<&String> = self.normalize.iter().filter_map(|(name, _)| name.as_ref()).collect();
        let keys = [("categories", &categories), ("dates", &dates), ("normalize", &normalized)];
        for (key, names) in keys {
            if let Some(name) = names.iter().find(|name| !columns.contains(&name.as_str())) {
                return wrong(format!("\"{key}\" names {name}, which is not among the columns that are taken"));
            }
        }
        if let Some(name) = categories.iter().find(|name| dates.contains(name) || normalized.contains(name)) {
            return wrong(format!("column {name} is in \"categories\", and so in neither \"dates\" nor \"normalize\""));
        }
        if self.classes.is_some() && keys.iter().any(|(_, names)| !names.is_empty()) {
            return wrong("columns of \"classes\" are not in \"categories\", \"dates\" or \"normalize\"".to_owned());
        }
        let others = self.classes.is_some() || keys.iter().any(|(_, names)| !names.is_empty());
        if self.class_weights.is_some() && (others || !self.normalize.is_empty() || columns.len() != 1) {
            return wrong(format!(
                "\"class_weights\" takes one column, that of the classes, without \"classes\", \"categories\", \"dates\" and \
                 \"normalize\"; there are {} columns",
                columns.len()
            ));
        }
        let decimal = self.decimal.unwrap_or('.');
        let is_of_number = |mark: char| mark.is_ascii_digit() || "+-eE".contains(mark);
        match self.thousands {
            Some(thousands) if thousands == decimal => wrong(format!(
                "{decimal:?} stands before the fraction, and so not between groups of digits: state \"decimal\", too"
            )),
            Some(mark) if is_of_number(mark) => wrong(format!("{mark:?} cannot stand between groups of digits")),
            _ if is_of_number(decimal) => wrong(format!("{decimal:?} cannot stand before the fraction of a number")),
            _ => Ok(()),
        }
    }

    /// Whether labels or numbers are measured of the examples that are trained with.
    pub fn is_measured(&self) -> bool {
        let labels = matches!(self.classes, Some(Classes::Auto))
            || self.categories.iter().any(|(_, category)| !matches!(category, Category::Hash(_)));
        labels
            || self.class_weights.is_some()
            || matches!(self.missing, Some(Missing::Mean | Missing::Median))
            || !self.normalize.is_empty()
    }
}

/// How the lines of a table are cut into fields. All placeholders that a file feeds have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LayoutOptions {
    /// The character between fields; a space stands for runs of spaces and tabs. Else a comma, and for .tsv a tab.
    pub delimiter: Option<char>,
    /// There is no line with the names of the columns, which are numbered from 0.
    pub no_header: bool,
    /// The number of lines before the first one that counts.
    pub skip: usize,
}

/// The treatment of missing fields of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Missing {
    /// The line is no example.
    Drop,
    /// The mean of the column in the examples that are trained with.
    Mean,
    /// The median of the column in the examples that are trained with.
    Median,
    /// A number.
    Value(f64),
}

/// The classes of a column, in the order of their numbers from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Classes {
    /// Those that occur: by their value if all are numbers, else by their name.
    Auto,
    /// These.
    Listed(Vec<String>),
}

/// The weights of the examples of each class.
#[derive(Clone, Debug, PartialEq)]
pub enum ClassWeights {
    /// The number of examples that are trained with, divided by the number of classes and by that of the class's examples:
    /// the classes weigh the same in all, and the mean weight is 1.
    Balanced,
    /// These, by label; 1 for other classes.
    Listed(Vec<(String, f64)>),
}

/// The numbers that a column of text becomes. A missing field is a category of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// As many numbers as there are categories: 1 for that of the field, and 0.
    OneHot,
    /// The number of the category, from 0.
    Ids,
    /// A number from 0 to below this one, by the field's hash.
    Hash(u64),
}

/// A number of a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatePart {
    Year,
    /// 1 to 12.
    Month,
    /// 1 to 31.
    Day,
    /// 1 to 366.
    DayOfYear,
    /// 0 (Monday) to 6.
    DayOfWeek,
    Hour,
    Minute,
    /// Since 1970.
    Seconds,
}

impl DatePart {
    /// All, with their names in files.
    pub const NAMES: [(&str, DatePart); 8] = [
        ("year", DatePart::Year),
        ("month", DatePart::Month),
        ("day", DatePart::Day),
        ("day_of_year", DatePart::DayOfYear),
        ("day_of_week", DatePart::DayOfWeek),
        ("hour", DatePart::Hour),
        ("minute", DatePart::Minute),
        ("seconds", DatePart::Seconds),
    ];
}

/// The normalisation of a column, measured on the examples that are trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalize {
    /// Mean 0 and standard deviation 1.
    Standard,
    /// From 0 to 1.
    MinMax,
}
