//! A kernel chosen once.

use super::{Problem, Scalar};
use crate::{
    error::{Error, Result},
    library::{Code, FunctionConstant, Kernel, Library},
    runtime::Constants,
};

/// A function constant, by index or by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConstantId {
    /// `[[function_constant(index)]]`.
    Index(u32),
    /// The name in the source.
    Name(String),
}

impl From<u32> for ConstantId {
    fn from(index: u32) -> Self {
        Self::Index(index)
    }
}

impl From<&str> for ConstantId {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

/// A kernel of a library with its function constants: looked up once, dispatched often.
#[derive(Debug, Clone)]
pub struct Pipeline {
    pub(super) library: Library,
    pub(super) kernel: usize,
    pub(super) code: Code,
    pub(super) constants: Constants,
}

impl Pipeline {
    /// The kernel of a host name, without function constants.
    pub fn new(library: &Library, kernel: &str) -> Result<Self> {
        let kernel = library.index_of(kernel)?;
        let code = library.code(kernel)?;
        Ok(Self { library: library.clone(), kernel, code, constants: Constants::default() })
    }

    /// Sets a function constant; those not set are undefined.
    pub fn constant(mut self, id: impl Into<ConstantId>, value: impl Scalar) -> Result<Self> {
        let set = [(id.into(), value.to_bytes())];
        self.constants = resolve(&self.constants, &set, self.library.constants())
            .map_err(|problem| Error::Dispatch { kernel: self.kernel().name.clone(), problem })?;
        Ok(self)
    }

    /// The kernel and the table of its arguments.
    pub fn kernel(&self) -> &Kernel {
        &self.library.kernels()[self.kernel]
    }

    /// The library it is from.
    pub fn library(&self) -> &Library {
        &self.library
    }
}

/// Constants with more of them set; the last value of each counts.
pub(super) fn resolve(
    constants: &Constants,
    set: &[(ConstantId, Vec<u8>)],
    known: &[FunctionConstant],
) -> Result<Constants, Problem> {
    if set.is_empty() {
        return Ok(constants.clone());
    }
    let mut values = constants.to_vec();
    for (id, bytes) in set {
        let found = known.iter().find(|c| match id {
            ConstantId::Index(i) => c.index == *i,
            ConstantId::Name(n) => c.name == *n,
        });
        let Some(constant) = found else {
            let known = known.iter().map(|c| format!("{} ({})", c.name, c.index)).collect();
            return Err(Problem::NoConstant { id: id.clone(), known });
        };
        if bytes.len() != constant.size as usize {
            let (name, needed) = (constant.name.clone(), constant.size as usize);
            return Err(Problem::ConstantSize { name, found: bytes.len(), needed });
        }
        values.retain(|(index, _)| *index != constant.index);
        values.push((constant.index, bytes.clone()));
    }
    values.sort_unstable();
    Ok(values.into())
}
