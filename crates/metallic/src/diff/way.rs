//! A way of computing, as a line says it: `soft,kv=f32,provider=sdpa=plain`.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use metallic_core::reference::ProductInputs;
use metallic_core::{Backend, BackendError, CompileOptions, DType};

use super::Side;
use crate::device::tuning::{Field, Tuned, Tuning};
use crate::device::{Device, OpenOptions, Providers, UnknownDevice, tuning};
use crate::model::Model;

/// A way of computing: a device and how it is used.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Way {
    /// Where.
    pub device: Device,
    /// How the device is used. A clone shares what it was asked for, so each way wants its own.
    pub open: OpenOptions,
    /// How a model is compiled.
    pub compile: CompileOptions,
    /// What plans of a GPU go by: `off`, a file, or `FIELD=VALUE`, one after another.
    pub tuning: Vec<String>,
}

/// What is wrong with a way.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum WayError {
    /// The device is unknown.
    #[error(transparent)]
    Device(#[from] UnknownDevice),
    /// An option is unknown.
    #[error(
        "`{0}` is no part of a way; after the device there may be exact, unfused, kv=TYPE, activations=TYPE, threads=N, provider=OP=NAME and tuning=off|FILE|FIELD=VALUE"
    )]
    Option(String),
    /// A value cannot be taken.
    #[error("`{option}` cannot be `{found}`: {needed}")]
    Value { option: &'static str, found: String, needed: String },
    /// The device has no such choice.
    #[error("`{option}` has no meaning on `{device}`: {needed}")]
    Meaningless { option: &'static str, device: String, needed: &'static str },
}

fn value<T>(option: &'static str, found: &str, read: Option<T>, needed: &str) -> Result<T, WayError> {
    read.ok_or_else(|| WayError::Value { option, found: found.to_owned(), needed: needed.to_owned() })
}

fn dtype(name: &str, of: &[DType]) -> Option<DType> {
    of.iter().copied().find(|dtype| dtype.to_string().eq_ignore_ascii_case(name))
}

impl FromStr for Way {
    type Err = WayError;

    fn from_str(text: &str) -> Result<Way, WayError> {
        let mut parts = text.split(',').map(str::trim);
        let device: Device = parts.next().unwrap_or_default().parse()?;
        let providers = Providers::new();
        let mut way = Way {
            device,
            open: OpenOptions::default().providers(providers.clone()).tuned(Tuned::new()),
            compile: CompileOptions::default(),
            tuning: Vec::new(),
        };
        for part in parts {
            match part.split_once('=') {
                None if part == "exact" => way.open.exact = true,
                None if part == "unfused" => way.compile.fuse = false,
                Some(("kv", name)) => {
                    let types = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];
                    way.compile.kv = value("kv", name, dtype(name, &types), "f32, f16, bf16 or q8_0")?;
                }
                Some(("activations", name)) => {
                    let types = [DType::F32, DType::F16, DType::BF16];
                    way.compile.activations =
                        value("activations", name, dtype(name, &types), "f32, f16 or bf16")?;
                }
                Some(("threads", count)) => {
                    way.open.threads = value("threads", count, count.parse().ok(), "a number")?;
                }
                Some(("provider", flag)) => {
                    let set = providers.set_by_flag(flag);
                    set.map_err(|error| WayError::Value {
                        option: "provider",
                        found: flag.to_owned(),
                        needed: error.to_string(),
                    })?;
                }
                Some(("tuning", from)) => way.tuning.push(from.to_owned()),
                _ => return Err(WayError::Option(part.to_owned())),
            }
        }
        way.check()?;
        Ok(way)
    }
}

/// The line that [`FromStr`] reads.
impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (usual, Way { device, open, compile, tuning }) = (CompileOptions::default(), self);
        write!(f, "{device}")?;
        if open.exact {
            f.write_str(",exact")?;
        }
        if !compile.fuse {
            f.write_str(",unfused")?;
        }
        if compile.kv != usual.kv {
            write!(f, ",kv={}", compile.kv.to_string().to_lowercase())?;
        }
        if compile.activations != usual.activations {
            write!(f, ",activations={}", compile.activations.to_string().to_lowercase())?;
        }
        if open.threads > 0 {
            write!(f, ",threads={}", open.threads)?;
        }
        for (op, provider) in open.providers.asked() {
            write!(f, ",provider={op}={provider}")?;
        }
        tuning.iter().try_for_each(|from| write!(f, ",tuning={from}"))
    }
}

impl Way {
    /// Refuses what would be passed over in silence.
    fn check(&self) -> Result<(), WayError> {
        let device = self.device.resolve();
        let meaningless =
            |option, needed| Err(WayError::Meaningless { option, device: device.to_string(), needed });
        match device {
            Device::Cpu | Device::Auto if !self.tuning.is_empty() => {
                meaningless("tuning", "only plans of GPUs have such numbers")
            }
            Device::Reference if !self.tuning.is_empty() || self.open.threads > 0 => {
                meaningless("tuning and threads", "it follows the formulas, on all cores")
            }
            Device::Metal(_) | Device::Cuda(_) | Device::Soft | Device::Null | Device::Reference
                if self.open.exact =>
            {
                meaningless("exact", "it computes in 32 bits unless its cache is smaller (kv=f32)")
            }
            _ => Ok(()),
        }
    }

    /// How a model is compiled.
    pub fn options(&self) -> CompileOptions {
        self.compile
    }

    /// What products round their inputs to by design.
    pub fn products(&self) -> ProductInputs {
        products(&self.device, self.open.exact, self.compile.kv)
    }

    /// Opens the device.
    pub fn open(&self) -> Result<OpenWay, BackendError> {
        let backend = self.device.open_with(&self.open)?;
        for from in &self.tuning {
            self.tune(from)?;
        }
        Ok(OpenWay { way: self.clone(), backend })
    }

    fn tune(&self, from: &str) -> Result<(), BackendError> {
        let tuned = &self.open.tuned;
        let refused = |reason: String| BackendError::Setting {
            device: "the GPU",
            setting: format!("tuning={from}"),
            reason,
        };
        let device = tuned.device().ok_or_else(|| refused("it has no such numbers".to_owned()))?;
        let numbers: Tuning = match from.split_once('=') {
            Some((name, number)) => {
                let field =
                    Field::named(name).ok_or_else(|| refused(format!("there is no field `{name}`")))?;
                let number = number.parse().map_err(|_| refused(format!("`{number}` is not a number")))?;
                let before = tuned.in_use().unwrap_or(device.built_in);
                field.with(&before, number).map_err(|error| refused(error.to_string()))?
            }
            None => tuning::asked(&device, OsString::from(from))?.tuning,
        };
        tuned.set(numbers).map_err(|error| refused(error.to_string()))
    }
}

/// What products round their inputs to by design on a device with a cache of this type.
pub(crate) fn products(device: &Device, exact: bool, kv: DType) -> ProductInputs {
    match device.resolve() {
        Device::Cpu | Device::Auto if exact => ProductInputs::Exact,
        Device::Cpu | Device::Auto => ProductInputs::Bytes,
        // Matrix units take halves of many tokens, unless the cache asks for 32 bits.
        Device::Cuda(_) | Device::Metal(_) if kv != DType::F32 => ProductInputs::Halves,
        Device::Cuda(_) | Device::Metal(_) | Device::Soft | Device::Null | Device::Reference => {
            ProductInputs::Exact
        }
    }
}

/// A way whose device is open.
pub struct OpenWay {
    /// The way.
    pub way: Way,
    /// Its device.
    pub backend: Box<dyn Backend>,
}

impl OpenWay {
    /// This way of computing a model.
    pub fn side<'a>(&'a self, model: &'a Model) -> Side<'a> {
        Side {
            name: self.way.to_string(),
            model,
            backend: self.backend.as_ref(),
            options: self.way.compile,
            products: self.way.products(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_read_as_they_print() {
        for text in [
            "cpu",
            "cpu,exact",
            "reference",
            "cpu,unfused,kv=f32",
            "soft,kv=q8_0,activations=bf16,threads=2,provider=sdpa=plain",
            "soft,tuning=off,tuning=vector_tokens=16",
        ] {
            let way: Way = text.parse().unwrap();
            assert_eq!(way.to_string(), text);
            assert_eq!(way.to_string().parse::<Way>().unwrap(), way);
        }
    }

    #[test]
    fn what_is_wrong_with_a_way_is_named() {
        for (text, named) in [
            ("tpu", "`tpu`"),
            ("cpu,fast", "`fast`"),
            ("cpu,kv=q4_0", "`q4_0`"),
            ("cpu,activations=q8_0", "`q8_0`"),
            ("soft,provider=sdpa=slow", "`sdpa=slow`"),
            ("soft,threads=many", "`many`"),
            ("soft,exact", "`exact`"),
            ("cpu,tuning=off", "`tuning`"),
        ] {
            let error = text.parse::<Way>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn two_ways_do_not_share_what_they_ask_for() {
        let (a, b): (Way, Way) = ("soft,provider=sdpa=plain".parse().unwrap(), "soft".parse().unwrap());
        assert_eq!((a.open.providers.asked().len(), b.open.providers.asked().len()), (1, 0));
    }
}
