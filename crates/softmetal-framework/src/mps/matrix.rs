//! `MPSMatrixDescriptor` and `MPSMatrix`.

use std::sync::Mutex;

use super::data_type::DataType;
use super::place::Place;
use super::refuse_init;
use crate::foundation::NS_OBJECT;
use crate::lock;
use crate::objc::{Id, Method, Strong, class, lend, methods, none, raw_methods};
use crate::problem::{Rule, refuse};

class!(pub(crate) static DESCRIPTOR = c"MPSMatrixDescriptor", &NS_OBJECT, described, makers);
class!(pub(crate) static MATRIX = c"MPSMatrix", &NS_OBJECT, all, none);

/// What a matrix looks like: `matrices` of `rows` by `columns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) matrices: usize,
    pub(crate) row_bytes: usize,
    pub(crate) matrix_bytes: usize,
    pub(crate) data_type: DataType,
}

impl Form {
    /// What the header excludes.
    fn wrong(&self) -> Option<String> {
        let Form { rows, columns, matrices, row_bytes, matrix_bytes, data_type } = *self;
        let size = data_type.size();
        if rows == 0 || columns == 0 || matrices == 0 {
            return Some(format!("{matrices} matrices of {rows}×{columns}: MPS asserts at least one"));
        }
        if !row_bytes.is_multiple_of(size) || row_bytes < columns.saturating_mul(size) {
            return Some(format!(
                "rows of {row_bytes} bytes for {columns} elements of {size}: MPS asserts a multiple of the element that \
                 holds them"
            ));
        }
        let needed = rows.saturating_mul(row_bytes);
        let short = !matrix_bytes.is_multiple_of(row_bytes) || matrix_bytes < needed;
        (matrices > 1 && short).then(|| {
            format!(
                "matrices of {matrix_bytes} bytes, {needed} by their rows of {row_bytes}: MPS asserts a multiple of the \
                 rows that holds them"
            )
        })
    }

    /// Bytes from its first element to its last, as the header of `initWithBuffer:` counts them.
    fn bytes(&self) -> usize {
        let (last_matrix, last_row) = (self.matrices.saturating_sub(1), self.rows.saturating_sub(1));
        let to_last = last_matrix.saturating_mul(self.matrix_bytes);
        let to_last = to_last.saturating_add(last_row.saturating_mul(self.row_bytes));
        to_last.saturating_add(self.columns.saturating_mul(self.data_type.size()))
    }
}

struct Descriptor(Mutex<Form>);

fn made(form: Form) -> Id {
    if let Some(wrong) = form.wrong() {
        refuse(Rule::Descriptor, wrong);
    }
    Strong::new(&DESCRIPTOR, Descriptor(Mutex::new(form))).lend()
}

fn makers() -> Vec<Method> {
    raw_methods! {
        c"matrixDescriptorWithRows:columns:rowBytes:dataType:"(
            _this, rows: usize, columns: usize, row_bytes: usize, data_type: u32
        ) -> Id {
            let data_type = DataType::of(data_type);
            made(Form { rows, columns, matrices: 1, row_bytes, matrix_bytes: rows.saturating_mul(row_bytes), data_type })
        }
        c"matrixDescriptorWithRows:columns:matrices:rowBytes:matrixBytes:dataType:"(
            _this, rows: usize, columns: usize, matrices: usize, row_bytes: usize, matrix_bytes: usize, data_type: u32
        ) -> Id {
            made(Form { rows, columns, matrices, row_bytes, matrix_bytes, data_type: DataType::of(data_type) })
        }
    }
}

fn described() -> Vec<Method> {
    methods! { Descriptor;
        c"rows"(this) -> usize { lock(&this.0).rows }
        c"columns"(this) -> usize { lock(&this.0).columns }
        c"matrices"(this) -> usize { lock(&this.0).matrices }
        c"rowBytes"(this) -> usize { lock(&this.0).row_bytes }
        c"matrixBytes"(this) -> usize { lock(&this.0).matrix_bytes }
        c"dataType"(this) -> u32 { lock(&this.0).data_type.number() }
        c"setRows:"(this, rows: usize) { lock(&this.0).rows = rows; }
        c"setColumns:"(this, columns: usize) { lock(&this.0).columns = columns; }
        c"setRowBytes:"(this, row_bytes: usize) { lock(&this.0).row_bytes = row_bytes; }
        c"setDataType:"(this, data_type: u32) { lock(&this.0).data_type = DataType::of(data_type); }
    }
}

/// What an `MPSMatrix` holds.
pub(crate) struct Matrix {
    pub(crate) form: Form,
    pub(crate) place: Place,
}

/// `initWithBuffer:offset:descriptor:`.
fn initialise(this: Id, buffer: Id, offset: usize, descriptor: Id) -> Id {
    let form = *lock(&descriptor.this::<Descriptor>().0);
    if let Some(wrong) = form.wrong() {
        refuse_init(this, Rule::Descriptor, wrong);
    }
    let sizes = (form.data_type.size(), form.bytes());
    let Some(place) = Place::of_init(this, ("a matrix", &form), (buffer, offset), sizes) else {
        return Id::NULL;
    };
    this.initialise(Matrix { form, place })
}

fn all() -> Vec<Method> {
    let mut all = methods! { Matrix;
        c"rows"(this) -> usize { this.form.rows }
        c"columns"(this) -> usize { this.form.columns }
        c"matrices"(this) -> usize { this.form.matrices }
        c"rowBytes"(this) -> usize { this.form.row_bytes }
        c"matrixBytes"(this) -> usize { this.form.matrix_bytes }
        c"dataType"(this) -> u32 { this.form.data_type.number() }
        c"offset"(this) -> usize { this.place.offset }
        c"data"(this) -> Id { this.place.object.clone().lend() }
        c"device"(this) -> Id { lend(Strong::retained(this.place.buffer.device.id)) }
    };
    all.extend(raw_methods! {
        c"initWithBuffer:descriptor:"(this, buffer: Id, descriptor: Id) -> Id {
            initialise(this, buffer, 0, descriptor)
        }
        c"initWithBuffer:offset:descriptor:"(this, buffer: Id, offset: usize, descriptor: Id) -> Id {
            initialise(this, buffer, offset, descriptor)
        }
    });
    all
}
