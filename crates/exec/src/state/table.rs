//! The ops of lookup tables.

use std::io::BufReader;
use std::sync::Arc;

use meshtf_kernels::KernelNode;
use meshtf_kernels::files::{Folder, Lines, failed};
use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, Shape, Tensor};

use super::super::resource::{LookupTable, MAX_BUCKETS, TableKind, TableSpec, keys_of};
use super::super::token::{Token, Tokens};
use super::named::{Named, Site};
use super::op::{StateInputs, StateOp, nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("HashTableV2", |node, site| handle(node, site, Form::Fixed));
    ops.insert("MutableHashTableV2", |node, site| handle(node, site, Form::Mutable));
    ops.insert("MutableHashTableOfTensorsV2", |node, site| handle(node, site, Form::OfVectors));
    ops.insert_all(["MutableDenseHashTable", "MutableDenseHashTableV2"], |node, site| handle(node, site, Form::Dense));
    ops.insert("AnonymousHashTable", |node, _| anonymous(node, Form::Fixed));
    ops.insert("AnonymousMutableHashTable", |node, _| anonymous(node, Form::Mutable));
    ops.insert("AnonymousMutableHashTableOfTensors", |node, _| anonymous(node, Form::OfVectors));
    ops.insert("AnonymousMutableDenseHashTable", |node, _| anonymous(node, Form::Dense));
    ops.insert_call("InitializeTableV2", |mut inputs, _| {
        inputs.table(0)?.fill(&inputs.host(1)?, &inputs.host(2)?)?;
        Ok(nothing())
    });
    ops.insert("InitializeTableFromTextFileV2", from_text_file);
    ops.insert_call("LookupTableFindV2", |mut inputs, _| {
        let (table, keys, default) = (inputs.table(0)?, inputs.host(1)?, inputs.host(2)?);
        Ok(one(turn::in_part(|| table.find(&keys, &default))?))
    });
    ops.insert_call("LookupTableInsertV2", |mut inputs, _| {
        inputs.table(0)?.insert(&inputs.host(1)?, &inputs.host(2)?)?;
        Ok(nothing())
    });
    ops.insert_call("LookupTableImportV2", |mut inputs, _| {
        inputs.table(0)?.import(&inputs.host(1)?, &inputs.host(2)?)?;
        Ok(nothing())
    });
    ops.insert_call("LookupTableRemoveV2", |mut inputs, _| {
        inputs.table(0)?.remove(&inputs.host(1)?)?;
        Ok(nothing())
    });
    ops.insert_call("LookupTableSizeV2", |mut inputs, _| Ok(one(Tensor::scalar(inputs.table(0)?.len() as i64))));
    ops.insert("LookupTableExportV2", |node, _| {
        let wanted: Vec<DType> = node.outputs.iter().map(|output| output.dtype).collect();
        simple(move |mut inputs, _| {
            let table = inputs.table(0)?;
            let TableSpec { keys, values, .. } = *table.spec();
            if wanted != [keys, values] {
                let why = format!("table '{}' has keys of {keys} and values of {values}", table.name());
                return Err(Failure::invalid(why));
            }
            let (keys, values) = table.export()?;
            Ok(Tokens::from_iter([Some(keys.into()), Some(values.into())]))
        })
    });
}

/// The table that an op makes.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// Filled once.
    Fixed,
    Mutable,
    /// Mutable, with vectors as values.
    OfVectors,
    Dense,
}

/// The table that a node describes, but for what its inputs say.
fn described(node: &KernelNode, form: Form) -> Result<(TableSpec, Option<Buckets>)> {
    let (keys, values) = (node.attrs.dtype("key_dtype")?, node.attrs.dtype("value_dtype")?);
    let value_shape = match node.attrs.get("value_shape") {
        None => Shape::scalar(),
        Some(_) => {
            let stated = node.attrs.shape("value_shape")?;
            let unknown = || Failure::invalid(format!("value_shape must be fully defined, got {stated}"));
            stated.known().ok_or_else(unknown)?
        }
    };
    let least = usize::from(form == Form::OfVectors);
    if value_shape.rank() > 1 || value_shape.rank() < least {
        let wanted = if least == 1 { "a vector" } else { "a scalar or a vector" };
        return Err(Failure::invalid(format!("Default value must be {wanted}, got shape {value_shape}")));
    }
    let kind = if form == Form::Fixed { TableKind::Fixed } else { TableKind::Mutable };
    let spec = TableSpec { kind, keys, values, key_shape: Shape::scalar(), value_shape };
    let buckets = if form == Form::Dense { Some(Buckets::of(node)?) } else { None };
    Ok((spec, buckets))
}

/// A table that lives as long as a handle to it flows through its step.
fn anonymous(node: &KernelNode, form: Form) -> Result<StateOp> {
    let ((spec, buckets), name) = (described(node, form)?, node.name.to_owned());
    simple(move |mut inputs, _| {
        let spec = match &buckets {
            Some(buckets) => buckets.spec(&spec, &mut inputs)?,
            None => spec.clone(),
        };
        Ok(one(Token::Resource(Arc::new(LookupTable::new(name.clone(), spec)))))
    })
}

fn handle(node: &KernelNode, site: &Site, form: Form) -> Result<StateOp> {
    let (spec, buckets) = described(node, form)?;
    let mut named = Named::new_own(node, site)?;
    simple(move |mut inputs, _| {
        let spec = match &buckets {
            Some(buckets) => buckets.spec(&spec, &mut inputs)?,
            None => spec.clone(),
        };
        let table = named.find(|name| LookupTable::new(name.to_owned(), spec.clone()))?;
        if (table.spec().keys, table.spec().values) != (spec.keys, spec.values) {
            let why = format!(
                "Conflicting key/value dtypes {}->{} with {}-{} for table {}",
                spec.keys,
                spec.values,
                table.spec().keys,
                table.spec().values,
                table.name()
            );
            return Err(Failure::invalid(why));
        }
        Ok(one(Token::Resource(table)))
    })
}

/// The buckets of a dense table, as its node states them.
struct Buckets {
    initial: usize,
    max_load: f32,
}

impl Buckets {
    fn of(node: &KernelNode) -> Result<Buckets> {
        let (stated, max_load) = (node.attrs.int("initial_num_buckets")?, node.attrs.float("max_load_factor")?);
        let initial = usize::try_from(stated).ok().filter(|count| count.is_power_of_two());
        let initial = initial
            .ok_or_else(|| Failure::invalid(format!("Number of buckets must be a power of 2, got: {stated}")))?;
        if initial > MAX_BUCKETS {
            let why = format!("initial_num_buckets is {initial}; the limit is {MAX_BUCKETS}");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        if !(max_load > 0.0 && max_load < 1.0) {
            return Err(Failure::invalid(format!("max_load_factor must be between 0 and 1, got: {max_load}")));
        }
        Ok(Buckets { initial, max_load })
    }

    fn spec(&self, of: &TableSpec, inputs: &mut StateInputs) -> Result<TableSpec> {
        let keys = inputs.rest(0)?;
        let [empty, rest @ ..] = &keys[..] else { return Err(Failure::invalid("a dense table needs an empty key")) };
        if empty.rank() > 1 {
            return Err(Failure::invalid(format!(
                "Empty key must be a scalar or a vector, got shape {}",
                empty.shape()
            )));
        }
        let one = |tensor: &Tensor| {
            let key = keys_of(tensor, empty.shape())?.pop();
            key.ok_or_else(|| Failure::invalid("a dense table's empty key has no elements"))
        };
        let (empty_key, deleted) = (one(empty)?, rest.first());
        if let Some(deleted) = deleted {
            if deleted.shape() != empty.shape() {
                let why = format!(
                    "Empty and deleted keys must have same shape, got shapes: {} and {}",
                    empty.shape(),
                    deleted.shape()
                );
                return Err(Failure::invalid(why));
            }
            if one(deleted)? == empty_key {
                return Err(Failure::invalid("Empty and deleted keys cannot be equal"));
            }
        }
        let kind = TableKind::Dense {
            empty: empty_key,
            deleted: deleted.map(one).transpose()?,
            buckets: self.initial,
            max_load: self.max_load,
        };
        Ok(TableSpec { kind, key_shape: empty.shape().clone(), ..of.clone() })
    }
}

/// The part of a line that is a key or a value.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    LineNumber,
    WholeLine,
    Column(usize),
}

impl Part {
    fn of(node: &KernelNode, attr: &str) -> Result<Part> {
        Ok(match node.attrs.int(attr)? {
            -1 => Part::LineNumber,
            -2 => Part::WholeLine,
            column => Part::Column(usize::try_from(column).unwrap_or(usize::MAX)),
        })
    }

    fn columns(self) -> usize {
        if let Part::Column(column) = self { column.saturating_add(1) } else { 0 }
    }

    /// # Errors
    /// InvalidArgument if keys or values of that dtype cannot be this part.
    fn check(self, what: &str, dtype: DType) -> Result<()> {
        let (wanted, fits) = match self {
            Part::LineNumber => ("line number requires table {} dtype of int64", dtype == DType::I64),
            Part::WholeLine => {
                ("whole line requires string or integer table {}", !dtype.is_float() && dtype != DType::Bool)
            }
            Part::Column(_) => ("column requires a table {} that text can be read as", dtype != DType::Bool),
        };
        if fits {
            return Ok(());
        }
        let lower = what.to_lowercase();
        Err(Failure::invalid(format!("{what} index for {}, got {dtype}", wanted.replace("{}", &lower))))
    }
}

/// The source of keys or values in a file.
struct Column {
    part: Part,
    data: Data,
}

impl Column {
    /// Adds its part of a line. `shown` is the number of the line as a key or a value, and `number` its place in the file.
    fn push(&mut self, line: &[u8], parts: &[&[u8]], shown: i64, number: usize) -> Result<()> {
        let text = match self.part {
            Part::LineNumber => {
                if let Data::I64(numbers) = &mut self.data {
                    numbers.push(shown);
                }
                return Ok(());
            }
            Part::WholeLine => line,
            Part::Column(column) => parts[column],
        };
        let field = String::from_utf8_lossy(text);
        let trimmed = field.trim();
        let is_read = match &mut self.data {
            Data::String(texts) => {
                texts.push(text.to_vec());
                true
            }
            Data::I32(ints) => trimmed.parse().map(|int| ints.push(int)).is_ok(),
            Data::I64(ints) => trimmed.parse().map(|int| ints.push(int)).is_ok(),
            Data::F32(floats) => trimmed.parse().map(|float| floats.push(float)).is_ok(),
            Data::F64(floats) => trimmed.parse().map(|float| floats.push(float)).is_ok(),
            other => return Err(Failure::invalid(format!("Data type {} not supported.", other.dtype()))),
        };
        if is_read {
            return Ok(());
        }
        Err(Failure::invalid(format!("Field {field} in line {number} is not a valid {}.", self.data.dtype())))
    }

    fn tensor(self) -> Result<Tensor> {
        Tensor::new([self.data.len()], self.data)
    }
}

fn from_text_file(node: &KernelNode, site: &Site) -> Result<StateOp> {
    let folder = site.folder(node);
    let (key, value) = (Part::of(node, "key_index")?, Part::of(node, "value_index")?);
    let stated = node.attrs.int("vocab_size")?;
    let limit = usize::try_from(stated).ok();
    let offset = node.attrs.get("offset").map_or(Ok(0), |_| node.attrs.int("offset"))?;
    let &[delimiter] = node.attrs.bytes("delimiter")? else {
        return Err(Failure::invalid("delimiter should be only 1 char"));
    };
    simple(move |mut inputs, _| {
        let (table, file) = (inputs.table(0)?, inputs.host(1)?);
        if file.rank() != 0 {
            let why = format!("filename should be a single string, but got {}", file.shape());
            return Err(Failure::invalid(why));
        }
        let TableSpec { keys, values, .. } = *table.spec();
        key.check("Key", keys)?;
        value.check("Value", values)?;
        let name = file.item::<Vec<u8>>()?;
        if table.is_filled() {
            // If a table is shared under the name of its file, the first filling counts.
            return folder.open(&name).map(|_| nothing());
        }
        let read = || read(&folder, &name, [(key, keys), (value, values)], delimiter, limit, offset);
        let (keys, values) = turn::in_part(read)?;
        match table.fill(&keys, &values) {
            // Another op has filled it in the meantime.
            Err(failure) if failure.code == Code::FailedPrecondition && table.is_filled() => Ok(nothing()),
            filled => filled.map(|()| nothing()),
        }
    })
}

/// The keys and values of a vocabulary file. `offset` is added to the numbers of its lines.
fn read(
    folder: &Folder,
    name: &[u8],
    columns: [(Part, DType); 2],
    delimiter: u8,
    limit: Option<usize>,
    offset: i64,
) -> Result<(Tensor, Tensor)> {
    let shown = || String::from_utf8_lossy(name).into_owned();
    let mut lines = Lines::new(BufReader::new(folder.open(name)?));
    let mut columns = columns.map(|(part, dtype)| Column { part, data: Data::zeros(dtype, 0) });
    let wanted = columns.iter().map(|column| column.part.columns()).max().unwrap_or(0);
    let mut number = 0usize;
    let mut is_short = false;
    while limit.is_none_or(|limit| number < limit) {
        let Some(mut line) = lines.next(|error| failed(name, error))? else {
            is_short = limit.is_some();
            break;
        };
        line.retain(|&byte| byte != b'\r');
        if line.is_empty() {
            return Err(Failure::invalid(format!(
                "Invalid content in {}: empty line found at line {number}.",
                shown()
            )));
        }
        memory::grow()?;
        let parts: Vec<&[u8]> = if wanted > 0 { line.split(|&byte| byte == delimiter).collect() } else { Vec::new() };
        if parts.len() < wanted {
            let (text, got) = (String::from_utf8_lossy(&line), parts.len());
            let why = format!(
                "Invalid number of columns in {} line {number} ({text}) : expected {wanted} got {got}",
                shown()
            );
            return Err(Failure::invalid(why));
        }
        for column in &mut columns {
            column.push(&line, &parts, offset.wrapping_add(number as i64), number)?;
        }
        number += 1;
    }
    if let Some(limit) = limit.filter(|_| is_short) {
        let why = format!("Invalid vocab_size in {}: expected {limit} but got {number}", shown());
        return Err(Failure::invalid(why));
    }
    let [keys, values] = columns;
    Ok((keys.tensor()?, values.tensor()?))
}
