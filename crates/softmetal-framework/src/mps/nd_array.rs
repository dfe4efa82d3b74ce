//! `MPSNDArrayDescriptor` and `MPSNDArray`, over memory of the program's.

use std::sync::Mutex;

use super::data_type::DataType;
use super::place::{Place, Span};
use super::refuse_init;
use crate::foundation::{NS_OBJECT, array, number_of, numbers};
use crate::lock;
use crate::metal::labels;
use crate::objc::{Id, Method, Strong, class, lend, methods, raw_methods};
use crate::problem::{Rule, refuse};
use crate::settings::macos_version;

class!(pub(crate) static DESCRIPTOR = c"MPSNDArrayDescriptor", &NS_OBJECT, described, makers);
class!(pub(crate) static ARRAY = c"MPSNDArray", &NS_OBJECT, all, crate::objc::none);

/// Axes at most.
const MOST_AXES: usize = 16;
/// Elements must be fewer.
const MOST_ELEMENTS: usize = 1 << 31;
/// What rows are padded to where nobody asks for packed ones: as the header advises, a multiple of 16 bytes.
const ROW_ALIGNMENT: usize = 16;

/// What an array looks like: the last axis runs fastest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) shape: Vec<usize>,
    pub(crate) data_type: DataType,
    packed: bool,
}

impl Form {
    fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    fn rows(&self) -> usize {
        self.shape.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    fn row_bytes(&self) -> usize {
        let dense = self.columns() * self.data_type.size();
        if self.packed { dense } else { dense.next_multiple_of(ROW_ALIGNMENT) }
    }

    fn bytes(&self) -> usize {
        self.rows() * self.row_bytes()
    }
}

struct Descriptor(Mutex<Form>);

fn makers() -> Vec<Method> {
    raw_methods! {
        c"descriptorWithDataType:shape:"(_this, data_type: u32, shape: Id) -> Id {
            let shape = numbers(shape);
            let elements = shape.iter().fold(1usize, |n, axis| n.saturating_mul(*axis));
            if shape.len() > MOST_AXES || elements >= MOST_ELEMENTS || elements == 0 {
                refuse(
                    Rule::Descriptor,
                    format!("an array of {shape:?}: MPS asserts at most {MOST_AXES} axes and fewer than 2^31 elements"),
                );
            }
            let form = Form { shape, data_type: DataType::of(data_type), packed: false };
            Strong::new(&DESCRIPTOR, Descriptor(Mutex::new(form))).lend()
        }
    }
}

fn described() -> Vec<Method> {
    methods! { Descriptor;
        c"dataType"(this) -> u32 { lock(&this.0).data_type.number() }
        c"numberOfDimensions"(this) -> usize { lock(&this.0).shape.len() }
        c"getShape"(this) -> Id {
            array(lock(&this.0).shape.iter().map(|axis| number_of(*axis)).collect()).lend()
        }
        c"preferPackedRows"(this) -> bool { lock(&this.0).packed }
        c"setPreferPackedRows:"(this, packed: bool) { lock(&this.0).packed = packed; }
    }
}

/// What an `MPSNDArray` holds.
pub(crate) struct NdArray {
    pub(crate) form: Form,
    pub(crate) place: Place,
}

/// Elements of an array in memory.
#[derive(Clone)]
pub(crate) struct Elements {
    pub(crate) form: Form,
    pub(crate) span: Span,
}

impl NdArray {
    pub(crate) fn elements(&self) -> Elements {
        Elements { form: self.form.clone(), span: self.place.span.clone() }
    }
}

impl Elements {
    pub(crate) fn read(&self) -> Result<Vec<f32>, String> {
        let (form, mut all) = (&self.form, Vec::new());
        for row in 0..form.rows() {
            let bytes = self.span.read(row * form.row_bytes(), form.columns() * form.data_type.size())?;
            all.extend(form.data_type.decode(&bytes));
        }
        Ok(all)
    }

    pub(crate) fn write(&self, numbers: &[f32]) -> Result<(), String> {
        let form = &self.form;
        for (row, numbers) in numbers.chunks_exact(form.columns().max(1)).enumerate() {
            self.span.write(row * form.row_bytes(), &form.data_type.encode(numbers))?;
        }
        Ok(())
    }
}

fn initialise(this: Id, buffer: Id, offset: usize, descriptor: Id) -> Id {
    let form = lock(&descriptor.this::<Descriptor>().0).clone();
    if macos_version() < 15 << 16 {
        refuse_init(
            this,
            Rule::NoMethod,
            "an array over a buffer before macOS 15: the message is not there".to_owned(),
        );
    }
    let sizes = (form.data_type.size(), form.bytes());
    let Some(place) = Place::of_init(this, ("an array", &form), (buffer, offset), sizes) else {
        return Id::NULL;
    };
    this.initialise(NdArray { form, place })
}

fn all() -> Vec<Method> {
    let mut all = methods! { NdArray;
        c"dataType"(this) -> u32 { this.form.data_type.number() }
        c"dataTypeSize"(this) -> usize { this.form.data_type.size() }
        c"numberOfDimensions"(this) -> usize { this.form.shape.len() }
        c"lengthOfDimension:"(this, index: usize) -> usize {
            // Counted from the fastest.
            this.form.shape.iter().rev().nth(index).copied().unwrap_or(1)
        }
        c"device"(this) -> Id { lend(Strong::retained(this.place.buffer.device.id)) }
        c"userBuffer"(this) -> Id { this.place.object.clone().lend() }
    };
    all.extend(raw_methods! {
        c"initWithBuffer:offset:descriptor:"(this, buffer: Id, offset: usize, descriptor: Id) -> Id {
            initialise(this, buffer, offset, descriptor)
        }
    });
    all.extend(labels());
    all
}
