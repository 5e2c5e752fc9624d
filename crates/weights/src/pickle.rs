//! Pickles as data: the values that a pickle describes, without running it.
//!
//! A pickle is a program: it names functions, and its reader calls them. Here, a call is a value ([`Value::Called`]) that the
//! caller of this module interprets, and only functions of its list may be called. Opcodes that make objects of classes are
//! refused. The crate serde-pickle is not used: it has no persistent ids, which hold PyTorch's tensors, and no calls as values.

use std::collections::HashMap;
use std::rc::Rc;

use meshtf_tensor::failure::Result;

use super::{limit, wrong};

/// Most values of a pickle.
const MAX_VALUES: usize = 4 << 20;
/// Most bytes of an integer.
const MAX_INT: usize = 16;

/// The number of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(u32);

/// A value of a pickle.
#[derive(Clone, Debug)]
pub enum Value {
    None,
    Bool,
    Int(i128),
    Float,
    Text(Rc<str>),
    Bytes,
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// `module.name`.
    Class(Rc<str>),
    /// A call of a class or function with a tuple of arguments, which was not made.
    Called(Rc<str>, Id),
    /// An object that the program which wrote the pickle stores elsewhere, by its id.
    Persistent(Id),
}

/// The values of a pickle.
#[derive(Debug, Default)]
pub struct Values(Vec<Value>);

impl Values {
    pub fn get(&self, id: Id) -> &Value {
        // Ids are made by `add` alone.
        &self.0[id.0 as usize]
    }

    /// The elements of a tuple or list.
    pub fn items(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Value::Tuple(items) | Value::List(items) => Some(items),
            _ => None,
        }
    }

    pub fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number that is not negative.
    pub fn size(&self, id: Id) -> Option<u64> {
        match self.get(id) {
            Value::Int(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    /// The ids of all persistent values.
    pub fn persistent(&self) -> impl Iterator<Item = Id> {
        self.0.iter().filter_map(|value| if let Value::Persistent(id) = value { Some(*id) } else { None })
    }

    fn add(&mut self, value: Value) -> Result<Id> {
        if self.0.len() >= MAX_VALUES {
            return Err(limit(format!("the pickle has more than {MAX_VALUES} values")));
        }
        self.0.push(value);
        Ok(Id(self.0.len() as u32 - 1))
    }
}

/// The classes and functions that a pickle may name.
pub type Allowed = [&'static str];

/// A pickle that was read.
pub struct Read {
    pub values: Values,
    pub root: Id,
    /// The number of bytes that it took.
    pub length: usize,
}

/// Reads the pickle at the beginning of some bytes.
///
/// # Errors
/// The byte with the error: an opcode that is not allowed, a class that is not, a pickle that is cut off.
pub fn read(bytes: &[u8], allowed: &Allowed) -> Result<Read> {
    let mut machine = Machine {
        bytes,
        at: 0,
        values: Values::default(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        copied: 0,
    };
    loop {
        let at = machine.at;
        match machine.step(allowed) {
            Ok(None) => {}
            Ok(Some(root)) => return Ok(Read { values: machine.values, root, length: machine.at }),
            Err(failure) => {
                let message = format!("byte {at} of the pickle: {}", failure.message);
                return Err(meshtf_tensor::failure::Failure { message, ..failure });
            }
        }
    }
}

struct Machine<'b> {
    bytes: &'b [u8],
    at: usize,
    values: Values,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// The number of pairs that were copied into dicts.
    copied: usize,
}

impl Machine<'_> {
    /// Does one opcode; returns the result at the last.
    fn step(&mut self, allowed: &Allowed) -> Result<Option<Id>> {
        let opcode = self.take(1)?[0];
        match opcode {
            b'.' => return self.pop().map(Some),
            0x80 => {
                let version = self.take(1)?[0];
                if version > 5 {
                    return Err(wrong(format!("protocol {version} is newer than 5")));
                }
            }
            // The length of a frame, which only helps to read ahead.
            0x95 => drop(self.take(8)?),
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool)?,
            0x89 => self.push(Value::Bool)?,
            b'J' => {
                let int = i32::from_le_bytes(self.chunk()?);
                self.push(Value::Int(int.into()))?;
            }
            b'K' => {
                let int = self.take(1)?[0];
                self.push(Value::Int(int.into()))?;
            }
            b'M' => {
                let int = u16::from_le_bytes(self.chunk()?);
                self.push(Value::Int(int.into()))?;
            }
            0x8a => {
                let length = usize::from(self.take(1)?[0]);
                if length > MAX_INT {
                    return Err(wrong(format!("an integer of {length} bytes; at most {MAX_INT} are read")));
                }
                let own = self.take(length)?;
                let sign = if own.last().is_some_and(|&last| last >= 0x80) { 0xff } else { 0 };
                let mut wide = [sign; MAX_INT];
                wide[..length].copy_from_slice(own);
                self.push(Value::Int(i128::from_le_bytes(wide)))?;
            }
            b'G' => {
                self.take(8)?;
                self.push(Value::Float)?;
            }
            b'X' | 0x8c | 0x8d => {
                let own = self.counted(opcode, (b'X', 0x8c))?;
                let text = std::str::from_utf8(own).map_err(|_| wrong("a text is not UTF-8"))?.into();
                self.push(Value::Text(text))?;
            }
            // Python 2's strings; those that PyTorch wrote are ASCII.
            b'T' | b'U' => {
                let own = self.counted(opcode, (b'T', b'U'))?;
                let value = std::str::from_utf8(own).map_or_else(|_| Value::Bytes, |text| Value::Text(text.into()));
                self.push(value)?;
            }
            b'B' | b'C' | 0x8e => {
                self.counted(opcode, (b'B', b'C'))?;
                self.push(Value::Bytes)?;
            }
            b'(' => {
                if self.marks.len() >= MAX_VALUES {
                    return Err(limit(format!("it has more than {MAX_VALUES} marks")));
                }
                self.marks.push(self.stack.len());
            }
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),
            b')' => self.push(Value::Tuple(Vec::new()))?,
            b']' => self.push(Value::List(Vec::new()))?,
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b't' => {
                let items = self.since_mark()?;
                self.push(Value::Tuple(items))?;
            }
            b'l' => {
                let items = self.since_mark()?;
                self.push(Value::List(items))?;
            }
            b'd' => {
                let items = self.since_mark()?;
                let pairs = pairs(&items)?;
                self.push(Value::Dict(pairs))?;
            }
            0x85..=0x87 => {
                let from = self.stack.len().checked_sub(usize::from(opcode - 0x84)).ok_or_else(empty)?;
                let items = self.stack.split_off(from);
                self.push(Value::Tuple(items))?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' => {
                let items = self.since_mark()?;
                self.append(&items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(&[(key, value)])?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set(&pairs(&items)?)?;
            }
            b'q' => {
                let key = self.take(1)?[0];
                self.put(key.into())?;
            }
            b'r' => {
                let key = u32::from_le_bytes(self.chunk()?);
                self.put(key)?;
            }
            0x94 => self.put(self.memo.len() as u32)?,
            b'h' => {
                let key = self.take(1)?[0];
                self.recall(key.into())?;
            }
            b'j' => {
                let key = u32::from_le_bytes(self.chunk()?);
                self.recall(key)?;
            }
            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                self.class(&module, &name, allowed)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let text =
                    |id| self.values.text(id).map(str::to_owned).ok_or_else(|| wrong("the name of a class is no text"));
                let (name, module) = (text(name)?, text(module)?);
                self.class(&module, &name, allowed)?;
            }
            b'R' => self.call()?,
            b'Q' => {
                let id = self.pop()?;
                self.push(Value::Persistent(id))?;
            }
            b'b' => {
                // Attributes of a dict, such as the versions that PyTorch keeps of modules.
                self.pop()?;
                let object = *self.stack.last().ok_or_else(empty)?;
                if !matches!(self.values.get(object), Value::Dict(_)) {
                    return Err(wrong(
                        "BUILD sets attributes of an object; a state dict has no objects but dicts and tensors",
                    ));
                }
            }
            other => return Err(wrong(refused(other))),
        }
        Ok(None)
    }

    fn take(&mut self, length: usize) -> Result<&[u8]> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| wrong("the pickle is cut off"))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut chunk = [0; N];
        chunk.copy_from_slice(self.take(N)?);
        Ok(chunk)
    }

    /// The bytes after a length: of 4 bytes with the first opcode, 1 with the second, else 8.
    fn counted(&mut self, opcode: u8, (four, one): (u8, u8)) -> Result<&[u8]> {
        let length = match opcode {
            own if own == four => u32::from_le_bytes(self.chunk()?).into(),
            own if own == one => self.take(1)?[0].into(),
            _ => u64::from_le_bytes(self.chunk()?),
        };
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn line(&mut self) -> Result<String> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&byte| byte == b'\n').ok_or_else(|| wrong("the pickle is cut off"))?;
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        self.at += end + 1;
        Ok(line)
    }

    fn push(&mut self, value: Value) -> Result<()> {
        let id = self.values.add(value)?;
        self.stack.push(id);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > floor {
            true => self.stack.pop().ok_or_else(empty),
            false => Err(empty()),
        }
    }

    fn since_mark(&mut self) -> Result<Vec<Id>> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len()).ok_or_else(empty)?;
        Ok(self.stack.split_off(mark))
    }

    /// The container on top of the stack, which an opcode is about to change.
    fn top(&mut self) -> Result<&mut Value> {
        let id = *self.stack.last().ok_or_else(empty)?;
        Ok(&mut self.values.0[id.0 as usize])
    }

    fn append(&mut self, items: &[Id]) -> Result<()> {
        match self.top()? {
            Value::List(list) => {
                list.extend_from_slice(items);
                Ok(())
            }
            _ => Err(wrong("APPEND on something that is no list")),
        }
    }

    fn set(&mut self, items: &[(Id, Id)]) -> Result<()> {
        match self.top()? {
            Value::Dict(dict) => {
                dict.extend_from_slice(items);
                Ok(())
            }
            _ => Err(wrong("SETITEM on something that is no dict")),
        }
    }

    fn put(&mut self, key: u32) -> Result<()> {
        let id = *self.stack.last().ok_or_else(empty)?;
        self.memo.insert(key, id);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<()> {
        let id = *self.memo.get(&key).ok_or_else(|| wrong(format!("it takes memo {key}, which was not set")))?;
        if self.stack.len() >= MAX_VALUES {
            return Err(limit(format!("its stack has more than {MAX_VALUES} values")));
        }
        self.stack.push(id);
        Ok(())
    }

    fn class(&mut self, module: &str, name: &str, allowed: &Allowed) -> Result<()> {
        let class = format!("{module}.{name}");
        if !allowed.contains(&class.as_str()) {
            let class: String = class.chars().take(200).collect();
            return Err(wrong(format!(
                "it names {class}, which is no class of a state dict; nothing of it is run. For a module or an optimizer, save the \
                 weights alone in Python: torch.save(model.state_dict(), FILE), or safetensors"
            )));
        }
        self.push(Value::Class(class.into()))
    }

    fn call(&mut self) -> Result<()> {
        let (args, function) = (self.pop()?, self.pop()?);
        let Value::Class(class) = self.values.get(function).clone() else {
            return Err(wrong("REDUCE calls something that is no class"));
        };
        let first = match self.values.get(args) {
            Value::Tuple(items) => items.first().copied(),
            _ => return Err(wrong("REDUCE with arguments that are no tuple")),
        };
        if &*class != "collections.OrderedDict" {
            return self.push(Value::Called(class, args));
        }
        let mut dict = Vec::new();
        if let Some(list) = first {
            // One list may be the argument of many calls, each of which copies it.
            self.copied += self.values.items(list).map_or(0, <[Id]>::len);
            if self.copied > MAX_VALUES {
                return Err(limit(format!("its OrderedDicts have more than {MAX_VALUES} pairs")));
            }
            for &pair in self.values.items(list).ok_or_else(|| wrong("an OrderedDict of something that is no list"))? {
                match self.values.items(pair) {
                    Some(&[key, value]) => dict.push((key, value)),
                    _ => return Err(wrong("an OrderedDict of something that is no list of pairs")),
                }
            }
        }
        self.push(Value::Dict(dict))
    }
}

fn pairs(items: &[Id]) -> Result<Vec<(Id, Id)>> {
    match items.as_chunks::<2>() {
        (pairs, []) => Ok(pairs.iter().map(|&[key, value]| (key, value)).collect()),
        _ => Err(wrong("a key without a value")),
    }
}

fn empty() -> meshtf_tensor::failure::Failure {
    wrong("an opcode takes more values than there are")
}

/// The reason why an opcode is refused.
fn refused(opcode: u8) -> String {
    let name = match opcode {
        b'i' => "INST",
        b'o' => "OBJ",
        0x81 => "NEWOBJ",
        0x92 => "NEWOBJ_EX",
        0x82..=0x84 => "EXT",
        b'P' => "PERSID",
        other => return format!("opcode 0x{other:02x}, which no state dict has"),
    };
    format!(
        "opcode {name}, which makes an object and so runs the code of its class; a state dict has none. In Python, save the weights \
         alone: torch.save(model.state_dict(), FILE), or safetensors"
    )
}
