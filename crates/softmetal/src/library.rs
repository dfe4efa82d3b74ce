//! A compiled source and what it says about its kernels.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;

use crate::{
    compiler::Parts,
    diagnostic::Diagnostic,
    error::{Error, Result},
    runtime::Image,
    texture::{Encoding, TextureKind},
};

/// Compiled kernels, loaded into this process. Those of a source that has many are compiled as they are asked for.
#[derive(Debug, Clone)]
pub struct Library {
    name: String,
    /// All code, or the tables of what `parts` compiles.
    image: Arc<Image>,
    parts: Option<Arc<Parts>>,
    warnings: Vec<Diagnostic>,
}

impl Library {
    pub(crate) fn new(
        name: &Path,
        image: Arc<Image>,
        parts: Option<Parts>,
        warnings: Vec<Diagnostic>,
    ) -> Self {
        Self { name: name.display().to_string(), image, parts: parts.map(Arc::new), warnings }
    }

    /// The source it was made from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kernels in the order of the source.
    pub fn kernels(&self) -> &[Kernel] {
        self.image.kernels()
    }

    /// The function constants in the order of the source.
    pub fn constants(&self) -> &[FunctionConstant] {
        self.image.constants()
    }

    /// The functions marked `[[visible]]`, in the order of the source: what a `visible_function_table` can hold.
    pub fn functions(&self) -> impl Iterator<Item = &str> {
        self.image.functions().iter().map(|(name, _)| name.as_str())
    }

    /// What the rewriter had to say.
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }

    /// The kernel of a host name.
    pub fn kernel(&self, name: &str) -> Result<&Kernel> {
        self.index_of(name).map(|index| &self.kernels()[index])
    }

    /// Compiles kernels that were not yet, as many at a time as there are processors. Otherwise each is when it is first
    /// dispatched or made a [`Pipeline`](crate::Pipeline) of.
    pub fn prepare<'n>(&self, kernels: impl IntoIterator<Item = &'n str>) -> Result<()> {
        let wanted: Vec<usize> =
            kernels.into_iter().map(|name| self.index_of(name)).collect::<Result<_>>()?;
        match &self.parts {
            Some(parts) => parts.prepare(&wanted, self.kernels()),
            None => Ok(()),
        }
    }

    /// The shared objects that have been loaded for its kernels so far.
    pub fn objects(&self) -> Vec<PathBuf> {
        match &self.parts {
            Some(parts) => parts.images().iter().map(|image| image.path().to_owned()).collect(),
            None => vec![self.image.path().to_owned()],
        }
    }

    pub(crate) fn index_of(&self, name: &str) -> Result<usize> {
        self.kernels().iter().position(|kernel| kernel.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.kernels().iter().map(|kernel| kernel.name.as_str()).collect();
            let known = nearest(name, &names);
            Error::NoKernel { name: name.to_owned(), library: self.name.clone(), known }
        })
    }

    /// The code of the kernel at `index`, and its place there.
    pub(crate) fn code(&self, index: usize) -> Result<Code> {
        Ok(match &self.parts {
            Some(parts) => Code { image: parts.image(index, &self.kernels()[index])?, entry: 0 },
            None => Code { image: self.image.clone(), entry: index },
        })
    }
}

/// Where the code of a kernel is.
#[derive(Debug, Clone)]
pub(crate) struct Code {
    pub(crate) image: Arc<Image>,
    /// Among the kernels of the image.
    pub(crate) entry: usize,
}

/// What a source says about its kernels: a [`Library`] without code.
#[derive(Debug, Clone, Serialize)]
pub struct Interface {
    /// The kernels in the order of the source.
    pub kernels: Vec<Kernel>,
    /// The function constants in the order of the source.
    pub constants: Vec<FunctionConstant>,
    /// What the rewriter had to say.
    pub warnings: Vec<Diagnostic>,
}

/// Up to eight names, those most like `name` first.
pub(crate) fn nearest(name: &str, names: &[&str]) -> Vec<String> {
    let mut ranked: Vec<(usize, &str)> = names.iter().map(|known| (distance(name, known), *known)).collect();
    ranked.sort_unstable();
    ranked.into_iter().take(8).map(|(_, known)| known.to_owned()).collect()
}

/// How much must change to make `b` of `a`. Letters that are missing weigh less than wrong ones: a part of a name finds it.
fn distance(a: &str, b: &str) -> usize {
    const WRONG: usize = 3;
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for letter in a.chars() {
        let mut diagonal = row[0];
        row[0] += WRONG;
        for (j, other) in b.iter().enumerate() {
            let change = diagonal + if letter == *other { 0 } else { WRONG };
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + WRONG);
        }
    }
    row[b.len()]
}

/// A kernel and the table of its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// The host name.
    pub name: String,
    /// In the order of the source.
    pub arguments: Vec<Argument>,
    /// `[[max_total_threads_per_threadgroup]]`, if given.
    pub max_threads: Option<u32>,
}

/// One parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(clippy::struct_excessive_bools, reason = "each says something else of the parameter")]
pub struct Argument {
    /// The parameter's name, empty if it has none.
    pub name: String,
    /// Its type as the source spells it.
    pub type_text: String,
    /// Where its value comes from.
    pub kind: ArgumentKind,
    /// Bytes of one element (pointer) or of the value; 0 for `void`.
    pub element_size: u32,
    /// Alignment of one element.
    pub alignment: u32,
    /// A pointer, rather than a reference or a value.
    pub pointer: bool,
    /// A reference, whatever the name of its type says.
    pub reference: bool,
    /// The kernel cannot write through it.
    pub read_only: bool,
    /// May stay unbound: a function constant switches it off.
    pub optional: bool,
    /// What textures it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub texture: Option<TextureArgument>,
}

/// What a parameter takes that is a texture, or an array of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TextureArgument {
    /// Their axes.
    pub kind: TextureKind,
    /// What the kernel has texels as.
    pub texel: TexelType,
    /// What it does with them.
    pub access: TextureAccess,
    /// How many there are, from the index on.
    pub count: u32,
}

impl TextureArgument {
    /// As `msl_abi.h` packs it; nothing for a parameter that is no texture.
    pub(crate) fn of_code(code: u32) -> Option<Self> {
        let [kind, texel, access, count] = code.to_le_bytes();
        Some(Self {
            kind: *TextureKind::ALL.get(usize::from(kind).checked_sub(1)?)?,
            texel: *TexelType::ALL.get(usize::from(texel))?,
            access: *TextureAccess::ALL.get(usize::from(access))?,
            count: count.into(),
        })
    }

    /// Whether the kernel may write them.
    pub fn writes(&self) -> bool {
        matches!(self.access, TextureAccess::Write | TextureAccess::ReadWrite)
    }
}

/// What a kernel has texels as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of the Metal Shading Language")]
pub enum TexelType {
    Float,
    Half,
    Int,
    Uint,
    Short,
    Ushort,
}

impl TexelType {
    const ALL: [Self; 6] = [Self::Float, Self::Half, Self::Int, Self::Uint, Self::Short, Self::Ushort];

    /// As the language spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Half => "half",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Short => "short",
            Self::Ushort => "ushort",
        }
    }

    /// Whether texels of this encoding can be had so.
    pub fn takes(self, encoding: Encoding) -> bool {
        match self {
            Self::Float | Self::Half => encoding.is_float(),
            Self::Int | Self::Short => encoding == Encoding::Sint,
            Self::Uint | Self::Ushort => encoding == Encoding::Uint,
        }
    }
}

/// What a kernel does with a texture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of the Metal Shading Language")]
pub enum TextureAccess {
    Sample,
    Read,
    Write,
    ReadWrite,
}

impl TextureAccess {
    const ALL: [Self; 4] = [Self::Sample, Self::Read, Self::Write, Self::ReadWrite];
}

/// Where an argument's value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentKind {
    /// `[[buffer(n)]]`.
    Buffer(u32),
    /// `[[threadgroup(n)]]`.
    Threadgroup(u32),
    /// `[[texture(n)]]`, the first of several where the parameter is an array.
    Texture(u32),
    /// `[[sampler(n)]]`.
    Sampler(u32),
    /// A position or size that the dispatch supplies.
    BuiltIn(BuiltIn),
}

macro_rules! built_ins {
    ($($variant:ident $attribute:literal $code:literal;)+) => {
        /// The values a dispatch supplies to each thread.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[allow(missing_docs)] // the names are those of the Metal Shading Language specification
        pub enum BuiltIn {
            $($variant,)+
        }

        impl BuiltIn {
            /// Each with the attribute that asks for it and its enumerator in `msl_entry.h`, where they count from one.
            pub(crate) const ALL: &[(BuiltIn, &str, &str)] = &[$((BuiltIn::$variant, $attribute, $code),)+];
        }
    };
}
built_ins! {
    ThreadPositionInGrid "thread_position_in_grid" "TPIG";
    ThreadgroupPositionInGrid "threadgroup_position_in_grid" "TGPIG";
    ThreadPositionInThreadgroup "thread_position_in_threadgroup" "TPITG";
    ThreadIndexInThreadgroup "thread_index_in_threadgroup" "TIITG";
    ThreadIndexInSimdgroup "thread_index_in_simdgroup" "TIISG";
    SimdgroupIndexInThreadgroup "simdgroup_index_in_threadgroup" "SGITG";
    ThreadsPerThreadgroup "threads_per_threadgroup" "TPTG";
    ThreadgroupsPerGrid "threadgroups_per_grid" "TGPG";
    ThreadsPerGrid "threads_per_grid" "TPG";
    SimdgroupsPerThreadgroup "simdgroups_per_threadgroup" "SGPTG";
    ThreadsPerSimdgroup "threads_per_simdgroup" "TPSG";
    ThreadIndexInQuadgroup "thread_index_in_quadgroup" "QIDX";
    QuadgroupIndexInThreadgroup "quadgroup_index_in_threadgroup" "QGRP";
    DispatchThreadsPerThreadgroup "dispatch_threads_per_threadgroup" "DTPTG";
    QuadgroupsPerThreadgroup "quadgroups_per_threadgroup" "QGPTG";
    GridOrigin "grid_origin" "GORG";
    GridSize "grid_size" "GSIZE";
}

/// A constant that the host sets before a dispatch.
#[derive(Debug, Clone, Serialize)]
pub struct FunctionConstant {
    /// Its name in the source.
    pub name: String,
    /// `[[function_constant(index)]]`.
    pub index: u32,
    /// Bytes of its value.
    pub size: u32,
    /// Its type as the source spells it.
    pub type_text: String,
}
