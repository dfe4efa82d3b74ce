//! `MPSMatrixMultiplication`: `C = alpha · op(A) · op(B) + beta · C`.

use std::sync::Mutex;

use super::data_type::DataType;
use super::kernel::KERNEL;
use super::matrix::{Form, Matrix};
use super::place::Span;
use super::{refuse_init, supports};
use crate::faults::{self, Fault};
use crate::lock;
use crate::metal::{Work, encode_work};
use crate::objc::{Id, Method, MtlSize, Strong, This, class, lend, methods, none, raw_methods};
use crate::problem::{Rule, refuse};

class!(pub(crate) static MULTIPLICATION = c"MPSMatrixMultiplication", &KERNEL, all, none);

/// What an object is made for.
#[derive(Debug, Clone, Copy)]
struct Product {
    transposed: [bool; 2],
    rows: usize,
    columns: usize,
    interior: usize,
    alpha: f64,
    beta: f64,
}

/// What may change between two encodings.
#[derive(Debug, Clone, Copy, Default)]
struct Range {
    /// Of the left, the right and the result matrix: column and row, as `MTLOrigin` has them.
    origins: [MtlSize; 3],
    batch_start: usize,
    /// `None`: all there are.
    batch_size: Option<usize>,
}

struct Multiplication {
    device: Strong,
    product: Product,
    range: Mutex<Range>,
}

/// Types that MPS multiplies, and the types of results they may have.
fn is_served(operands: [DataType; 2], result: DataType) -> bool {
    matches!((operands, result), ([DataType::F32, DataType::F32], DataType::F32))
        || operands == [DataType::F16; 2] && result.is_float()
}

impl Multiplication {
    fn encode(&self, buffer: Id, matrices: [Id; 3]) {
        let [left, right, result] = matrices.map(Id::this::<Matrix>);
        let range = *lock(&self.range);
        let all = [&left, &right, &result];
        if !is_served([left.form.data_type, right.form.data_type], result.form.data_type) {
            let types = all.map(|matrix| matrix.form.data_type);
            refuse(Rule::Descriptor, format!("a product of {types:?}: MPS asserts types that it multiplies"));
        }
        if let Some(other) = all.iter().find(|m| m.place.buffer.device.id != self.device.id()) {
            refuse(Rule::Device, format!("{} is of another device than the kernel", other.id.describe()));
        }
        let Product { transposed, rows, columns, interior, .. } = self.product;
        let turned = |turn: bool, shape: [usize; 2]| if turn { [shape[1], shape[0]] } else { shape };
        let shapes = [
            turned(transposed[0], [rows, interior]),
            turned(transposed[1], [interior, columns]),
            [rows, columns],
        ];
        for ((matrix, shape), origin) in all.into_iter().zip(shapes).zip(range.origins) {
            check_size(matrix, shape, origin);
        }
        let there = all.map(|matrix| matrix.form.matrices).into_iter().min().unwrap_or(0);
        let count = range.batch_size.unwrap_or(there.saturating_sub(range.batch_start));
        if range.batch_start.saturating_add(count) > there {
            refuse(
                Rule::Range,
                format!(
                    "matrices {}..+{count} of {there}: MPS asserts that they are there",
                    range.batch_start
                ),
            );
        }
        let part = |matrix: &This<Matrix>, origin: MtlSize| Part {
            form: matrix.form,
            span: matrix.place.span.clone(),
            origin: [origin.height, origin.width],
        };
        let parts =
            [part(&left, range.origins[0]), part(&right, range.origins[1]), part(&result, range.origins[2])];
        let product = self.product;
        let batch = range.batch_start..range.batch_start + count;
        encode_work(buffer, "MPSMatrixMultiplication", |retained| Work {
            name: "MPSMatrixMultiplication".to_owned(),
            uses: vec![
                left.place.used(retained, false),
                right.place.used(retained, false),
                result.place.used(retained, true),
            ],
            run: Box::new(move || batch.clone().try_for_each(|matrix| product.run(&parts, matrix))),
        });
    }
}

fn check_size(matrix: &This<Matrix>, [rows, columns]: [usize; 2], origin: MtlSize) {
    let Form { rows: most_rows, columns: most_columns, .. } = matrix.form;
    let inside = origin.height.saturating_add(rows) <= most_rows
        && origin.width.saturating_add(columns) <= most_columns
        && origin.depth == 0;
    if !inside {
        refuse(
            Rule::Range,
            format!(
                "{rows}×{columns} from {:?} on of {} with {most_rows}×{most_columns}: MPS asserts that it is large enough",
                origin.axes(),
                matrix.id.describe()
            ),
        );
    }
}

/// A matrix, from its origin on.
struct Part {
    form: Form,
    span: Span,
    origin: [usize; 2],
}

impl Part {
    /// Where a row begins.
    fn start(&self, matrix: usize, row: usize) -> usize {
        let Form { matrix_bytes, row_bytes, data_type, .. } = self.form;
        matrix * matrix_bytes + (self.origin[0] + row) * row_bytes + self.origin[1] * data_type.size()
    }

    fn row(&self, matrix: usize, row: usize, columns: usize) -> Result<Vec<f32>, String> {
        let data_type = self.form.data_type;
        Ok(data_type.decode(&self.span.read(self.start(matrix, row), columns * data_type.size())?))
    }

    /// `[rows, columns]`, turned where it is asked for.
    fn numbers(&self, matrix: usize, [rows, columns]: [usize; 2], turned: bool) -> Result<Vec<f32>, String> {
        let [own_rows, own_columns] = if turned { [columns, rows] } else { [rows, columns] };
        let mut all = Vec::with_capacity(rows * columns);
        for row in 0..own_rows {
            all.extend(self.row(matrix, row, own_columns)?);
        }
        if !turned {
            return Ok(all);
        }
        Ok((0..rows * columns).map(|i| all[i % columns * own_columns + i / columns]).collect())
    }
}

impl Product {
    fn run(&self, [left, right, result]: &[Part; 3], matrix: usize) -> Result<(), String> {
        let Product { transposed, rows, columns, interior, alpha, beta } = *self;
        let (alpha, beta) = (alpha as f32, beta as f32);
        let a = left.numbers(matrix, [rows, interior], transposed[0])?;
        // Column by column, so that a sum goes along memory.
        let b = right.numbers(matrix, [columns, interior], !transposed[1])?;
        for (row, a) in a.chunks_exact(interior.max(1)).enumerate() {
            let sums = b.chunks_exact(interior.max(1)).map(|b| alpha * dot(a, b));
            let mut out: Vec<f32> = sums.collect();
            // What is there is not read where nothing of it counts: it may be no number.
            if beta != 0.0 {
                let there = result.row(matrix, row, columns)?;
                out.iter_mut().zip(there).for_each(|(sum, there)| *sum += beta * there);
            }
            result.span.write(result.start(matrix, row), &result.form.data_type.encode(&out))?;
        }
        Ok(())
    }
}

/// In `f32`, eight sums side by side.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0_f32; 8];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

fn initialise(this: Id, device: Id, product: Product) -> Id {
    if !supports(device) {
        refuse_init(
            this,
            Rule::Device,
            format!("{} is none that MPS supports: it asserts that it is", device.describe()),
        );
    }
    if [product.rows, product.columns, product.interior].contains(&0) {
        refuse_init(
            this,
            Rule::Descriptor,
            format!("a product {product:?}: MPS asserts at least one on each axis"),
        );
    }
    let Some(device) = Strong::retained(device).filter(|_| !faults::strikes(Fault::Library)) else {
        this.release();
        return Id::NULL;
    };
    this.initialise(Multiplication { device, product, range: Mutex::default() })
}

fn all() -> Vec<Method> {
    let mut all = methods! { Multiplication;
        c"device"(this) -> Id { lend(Some(this.device.clone())) }
        c"resultMatrixOrigin"(this) -> MtlSize { lock(&this.range).origins[2] }
        c"setResultMatrixOrigin:"(this, origin: MtlSize) { lock(&this.range).origins[2] = origin; }
        c"leftMatrixOrigin"(this) -> MtlSize { lock(&this.range).origins[0] }
        c"setLeftMatrixOrigin:"(this, origin: MtlSize) { lock(&this.range).origins[0] = origin; }
        c"rightMatrixOrigin"(this) -> MtlSize { lock(&this.range).origins[1] }
        c"setRightMatrixOrigin:"(this, origin: MtlSize) { lock(&this.range).origins[1] = origin; }
        c"batchStart"(this) -> usize { lock(&this.range).batch_start }
        c"setBatchStart:"(this, start: usize) { lock(&this.range).batch_start = start; }
        c"batchSize"(this) -> usize { lock(&this.range).batch_size.unwrap_or(usize::MAX) }
        c"setBatchSize:"(this, size: usize) { lock(&this.range).batch_size = Some(size); }
        c"encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:"(
            this, buffer: Id, left: Id, right: Id, result: Id
        ) {
            this.encode(buffer, [left, right, result]);
        }
    };
    all.extend(raw_methods! {
        c"initWithDevice:transposeLeft:transposeRight:resultRows:resultColumns:interiorColumns:alpha:beta:"(
            this, device: Id, left: bool, right: bool, rows: usize, columns: usize, interior: usize, alpha: f64, beta: f64
        ) -> Id {
            initialise(this, device, Product { transposed: [left, right], rows, columns, interior, alpha, beta })
        }
        c"initWithDevice:resultRows:resultColumns:interiorColumns:"(
            this, device: Id, rows: usize, columns: usize, interior: usize
        ) -> Id {
            let transposed = [false; 2];
            initialise(this, device, Product { transposed, rows, columns, interior, alpha: 1.0, beta: 0.0 })
        }
    });
    all
}
