//! The values of a Parquet file as the fields of a text.

use std::io::Write;

use chrono::{DateTime, NaiveTime};
use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::column::reader::ColumnReader;
use parquet::data_type::{ByteArray, FixedLenByteArray, Int96};
use parquet::schema::types::{ColumnDescriptor, Type};

/// The meaning of a column's values.
pub(super) enum Form {
    /// As they are: numbers, true and false, and texts.
    Plain,
    Unsigned,
    /// Days since 1970.
    Date,
    /// Parts of a second since midnight, by their number in a second.
    Time(i64),
    /// Parts of a second since 1970, by their number in a second; and whether they are of UTC.
    Moment(i64, bool),
    /// Whole numbers with so many digits after the point.
    Decimal(usize),
    /// Floats of 16 bits.
    Half,
    Uuid,
}

/// The kind of a nested column, which is no field of a table: `is a list`.
pub(super) fn nested(column: &Type) -> Option<&'static str> {
    let info = column.get_basic_info();
    match (info.logical_type_ref(), info.converted_type()) {
        (Some(LogicalType::List), _) | (_, ConvertedType::LIST) => Some("is a list"),
        (Some(LogicalType::Map), _) | (_, ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE) => Some("is a map"),
        _ if column.is_group() => Some("is a structure of several parts"),
        _ if info.has_repetition() && info.repetition() == Repetition::REPEATED => Some("is a list"),
        _ => None,
    }
}

impl Form {
    /// The form of a column by its type.
    ///
    /// # Errors
    /// Values that are no fields of a table: `has intervals of time`.
    pub fn of(column: &ColumnDescriptor) -> Result<Form, &'static str> {
        const MILLIS: i64 = 1_000;
        const MICROS: i64 = 1_000_000;
        let per_second = |unit: &TimeUnit| match unit {
            TimeUnit::MILLIS => MILLIS,
            TimeUnit::MICROS => MICROS,
            TimeUnit::NANOS => NANOS,
        };
        let decimal = || Ok(Form::Decimal(usize::try_from(column.type_scale()).unwrap_or(0)));
        match (column.logical_type_ref(), column.converted_type()) {
            (Some(LogicalType::Timestamp(of)), _) => Ok(Form::Moment(per_second(&of.unit), of.is_adjusted_to_u_t_c)),
            (Some(LogicalType::Time(of)), _) => Ok(Form::Time(per_second(&of.unit))),
            (Some(LogicalType::Date), _) | (None, ConvertedType::DATE) => Ok(Form::Date),
            (Some(LogicalType::Decimal(_)), _) | (None, ConvertedType::DECIMAL) => decimal(),
            (Some(LogicalType::Integer(of)), _) if !of.is_signed => Ok(Form::Unsigned),
            (Some(LogicalType::Float16), _) => Ok(Form::Half),
            (Some(LogicalType::Uuid), _) => Ok(Form::Uuid),
            (Some(LogicalType::Bson), _) | (None, ConvertedType::BSON) => Err("has documents of BSON"),
            (Some(LogicalType::Geometry(_) | LogicalType::Geography(_)), _) => Err("has shapes of geography"),
            (None, ConvertedType::INTERVAL) => Err("has intervals of time"),
            (None, ConvertedType::TIME_MILLIS) => Ok(Form::Time(MILLIS)),
            (None, ConvertedType::TIME_MICROS) => Ok(Form::Time(MICROS)),
            (None, ConvertedType::TIMESTAMP_MILLIS) => Ok(Form::Moment(MILLIS, true)),
            (None, ConvertedType::TIMESTAMP_MICROS) => Ok(Form::Moment(MICROS, true)),
            (
                None,
                ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64,
            ) => Ok(Form::Unsigned),
            _ if column.physical_type() == Physical::INT96 => Ok(Form::Moment(NANOS, false)),
            _ => Ok(Form::Plain),
        }
    }
}

const NANOS: i64 = 1_000_000_000;

/// Values of a column that are decoded, without the missing ones.
pub(super) enum Values {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Int96(Vec<Int96>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
    Fixed(Vec<FixedLenByteArray>),
}

impl Values {
    /// Decodes the values of up to so many rows, and a level for each row, unless no value can be missing. Returns the number of
    /// rows, too.
    pub fn read(
        reader: &mut ColumnReader,
        rows: usize,
        levels: &mut Vec<i16>,
    ) -> parquet::errors::Result<(Values, usize)> {
        macro_rules! read {
            ($reader:expr, $kind:ident) => {{
                let mut values = Vec::new();
                let (rows, ..) = $reader.read_records(rows, Some(levels), None, &mut values)?;
                Ok((Values::$kind(values), rows))
            }};
        }
        match reader {
            ColumnReader::BoolColumnReader(reader) => read!(reader, Bool),
            ColumnReader::Int32ColumnReader(reader) => read!(reader, Int32),
            ColumnReader::Int64ColumnReader(reader) => read!(reader, Int64),
            ColumnReader::Int96ColumnReader(reader) => read!(reader, Int96),
            ColumnReader::FloatColumnReader(reader) => read!(reader, Float),
            ColumnReader::DoubleColumnReader(reader) => read!(reader, Double),
            ColumnReader::ByteArrayColumnReader(reader) => read!(reader, Bytes),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => read!(reader, Fixed),
        }
    }

    /// Writes a value as a field.
    ///
    /// # Errors
    /// The value has no such form.
    pub fn write(&self, place: usize, form: &Form, to: &mut Vec<u8>) -> Result<(), String> {
        let missing = || "has fewer values than it states".to_owned();
        let number = match self {
            Values::Bool(all) => return show(to, all.get(place).ok_or_else(missing)?),
            // As programs write them: 1.0, 0.1, 1e30.
            Values::Float(all) => return show_debug(to, all.get(place).ok_or_else(missing)?),
            Values::Double(all) => return show_debug(to, all.get(place).ok_or_else(missing)?),
            Values::Bytes(all) => return bytes(all.get(place).ok_or_else(missing)?.data(), form, to),
            Values::Fixed(all) => return bytes(all.get(place).ok_or_else(missing)?.data(), form, to),
            Values::Int32(all) if matches!(form, Form::Unsigned) => {
                return show(to, &(*all.get(place).ok_or_else(missing)? as u32));
            }
            Values::Int64(all) if matches!(form, Form::Unsigned) => {
                return show(to, &(*all.get(place).ok_or_else(missing)? as u64));
            }
            Values::Int32(all) => i64::from(*all.get(place).ok_or_else(missing)?),
            Values::Int64(all) => *all.get(place).ok_or_else(missing)?,
            Values::Int96(all) => return moment_of_96_bits(all.get(place).ok_or_else(missing)?, to),
        };
        let beyond = || format!("has {number}, which is no date from the year -262143 to 262142");
        match *form {
            Form::Date => {
                let day = number.checked_mul(24 * 60 * 60).and_then(|seconds| DateTime::from_timestamp(seconds, 0));
                show(to, &day.ok_or_else(beyond)?.format("%Y-%m-%d"))
            }
            Form::Moment(per_second, is_of_utc) => {
                let (seconds, nanos) = divided(number, per_second);
                let moment = DateTime::from_timestamp(seconds, nanos).ok_or_else(beyond)?;
                show(to, &moment.format(if is_of_utc { "%Y-%m-%d %H:%M:%S%.fZ" } else { "%Y-%m-%d %H:%M:%S%.f" }))
            }
            Form::Time(per_second) => {
                let (seconds, nanos) = divided(number, per_second);
                let time = u32::try_from(seconds).ok();
                let time = time.and_then(|seconds| NaiveTime::from_num_seconds_from_midnight_opt(seconds, nanos));
                let time = time.ok_or_else(|| format!("has {number}, which is no time of a day"))?;
                show(to, &time.format("%H:%M:%S%.f"))
            }
            Form::Decimal(places) => decimal(number.into(), places, to),
            _ => show(to, &number),
        }
    }
}

/// A moment as a Julian day and the nanoseconds of that day: those of all years would not fit into 64 bits.
fn moment_of_96_bits(value: &Int96, to: &mut Vec<u8>) -> std::result::Result<(), String> {
    /// 1970-01-01.
    const EPOCH: i64 = 2_440_588;
    let &[low, high, day] = value.data() else { return Err("has a moment of less than 96 bits".to_owned()) };
    let (seconds, nanos) = divided((i64::from(high) << 32) | i64::from(low), NANOS);
    let moment = DateTime::from_timestamp((i64::from(day as i32) - EPOCH) * 24 * 60 * 60 + seconds, nanos);
    let moment = moment.ok_or_else(|| format!("has the Julian day {day}, which is no date"))?;
    show(to, &moment.format("%Y-%m-%d %H:%M:%S%.f"))
}

/// Seconds, rounded down, and nanoseconds after them.
fn divided(number: i64, per_second: i64) -> (i64, u32) {
    (number.div_euclid(per_second), (number.rem_euclid(per_second) * (NANOS / per_second)) as u32)
}

/// A whole number with a point before its last digits.
fn decimal(number: i128, places: usize, to: &mut Vec<u8>) -> Result<(), String> {
    /// The digits that a number of 128 bits can have.
    const MAX_PLACES: usize = 39;
    if places > MAX_PLACES {
        return Err(format!("has numbers of {places} decimal places; at most {MAX_PLACES} are read"));
    }
    if places == 0 {
        return show(to, &number);
    }
    let sign = if number < 0 { "-" } else { "" };
    let digits = format!("{:0width$}", number.unsigned_abs(), width = places + 1);
    let (whole, rest) = digits.split_at(digits.len() - places);
    show(to, &format_args!("{sign}{whole}.{rest}"))
}

/// Bytes as text, or as a number or name that they stand for.
fn bytes(bytes: &[u8], form: &Form, to: &mut Vec<u8>) -> Result<(), String> {
    match form {
        Form::Half => {
            let half = <[u8; 2]>::try_from(bytes).map_err(|_| "has floats of 16 bits without 2 bytes")?;
            show_debug(to, &half::f16::from_le_bytes(half).to_f32())
        }
        Form::Decimal(places) => {
            const SIZE: usize = size_of::<i128>();
            if bytes.len() > SIZE {
                return Err(format!("has numbers of {} bytes; at most {SIZE} are read", bytes.len()));
            }
            // The sign fills the bytes before.
            let sign = if bytes.first().is_some_and(|first| first & 0x80 != 0) { 0xff } else { 0 };
            let mut whole = [sign; SIZE];
            whole[SIZE - bytes.len()..].copy_from_slice(bytes);
            decimal(i128::from_be_bytes(whole), *places, to)
        }
        Form::Uuid => {
            for (i, byte) in bytes.iter().enumerate() {
                let dash = if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
                show(to, &format_args!("{dash}{byte:02x}"))?;
            }
            Ok(())
        }
        _ => match std::str::from_utf8(bytes) {
            Ok(_) => {
                let needs_quotes = bytes.iter().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r'));
                if needs_quotes {
                    quote(bytes, to)
                } else {
                    to.extend_from_slice(bytes)
                }
                Ok(())
            }
            Err(_) => Err("has bytes that are no text (UTF-8)".to_owned()),
        },
    }
}

/// Writes a text in quotes.
pub(super) fn quote(text: &[u8], to: &mut Vec<u8>) {
    to.push(b'"');
    for byte in text {
        if *byte == b'"' {
            to.push(b'"');
        }
        to.push(*byte);
    }
    to.push(b'"');
}

fn show(to: &mut Vec<u8>, value: &dyn std::fmt::Display) -> Result<(), String> {
    write!(to, "{value}").map_err(|error| error.to_string())
}

fn show_debug(to: &mut Vec<u8>, value: &dyn std::fmt::Debug) -> Result<(), String> {
    write!(to, "{value:?}").map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 9999-12-31 is the Julian day 5,373,484, 0001-01-01 the day 1,721,426.
    #[test]
    fn moments_of_96_bits_are_of_any_year() {
        for (day, nanos, want) in [
            (2_440_588, 0u64, "1970-01-01 00:00:00"),
            (5_373_484, 86_399_000_000_000, "9999-12-31 23:59:59"),
            (1_721_426, 1_500_000_000, "0001-01-01 00:00:01.500"),
        ] {
            let mut value = Int96::new();
            value.set_data(nanos as u32, (nanos >> 32) as u32, day);
            let mut text = Vec::new();
            moment_of_96_bits(&value, &mut text).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), want);
        }
    }
}
