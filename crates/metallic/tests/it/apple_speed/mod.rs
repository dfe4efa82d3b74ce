//! `docs/apple-speed.md` is what the plans give. `cargo xtask apple-speed` writes it.

mod findings;
mod page;
mod shapes;

use std::path::Path;

use metallic::Model;
use metallic::bench::{Kind, Test, count};
use metallic::core::{CompileOptions, DType, KernelCount};
use metallic::device::{OpenOptions, apple_rehearsal};
use metallic::roof::Chip;

use shapes::{SHAPES, TYPES};

/// Set where the page is to be written.
const WRITE: &str = "METALLIC_WRITE_DOCS";

/// The steps that are counted.
const TESTS: [Test; 4] = [
    Test { kind: Kind::Decode, tokens: 1, depth: 0, sequences: 1 },
    Test { kind: Kind::Decode, tokens: 1, depth: 4096, sequences: 1 },
    Test { kind: Kind::Decode, tokens: 1, depth: 0, sequences: 8 },
    Test { kind: Kind::Prefill, tokens: 512, depth: 0, sequences: 1 },
];

/// What plans tell apart of chips, by the last word of their name.
const GRADES: [&str; 4] = ["M4", "M4 Pro", "M4 Max", "M3 Ultra"];

/// A model in a type, counted.
struct Counted {
    model: &'static str,
    dtype: DType,
    parameters: u64,
    weight_bytes: u64,
    /// By grade, then by test.
    kernels: Vec<[Vec<KernelCount>; TESTS.len()]>,
}

impl Counted {
    /// The kernels of a test on a chip.
    fn on(&self, chip: &Chip, test: usize) -> &[KernelCount] {
        let last = |name: &str| name.split(' ').nth(1).unwrap_or_default().to_owned();
        let grade = GRADES.iter().position(|grade| last(grade) == last(chip.name)).unwrap();
        &self.kernels[grade][test]
    }
}

fn counted() -> Vec<Counted> {
    // Files are synced when they are done, which costs nothing in memory.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let mut all = Vec::new();
    for shape in SHAPES {
        for dtype in TYPES {
            let path = folder.path().join("shape.gguf");
            shape.write(&path, dtype).unwrap();
            let model = Model::open(&path).unwrap();
            let kernels = GRADES.map(|grade| kernels(&model, grade));
            all.push(Counted {
                model: shape.name,
                dtype,
                parameters: model.parameters(),
                weight_bytes: model.weight_bytes(),
                kernels: kernels.into(),
            });
        }
    }
    all
}

fn kernels(model: &Model, chip: &str) -> [Vec<KernelCount>; TESTS.len()] {
    let backend = apple_rehearsal(&format!("Apple {chip}"), &OpenOptions::default()).unwrap();
    let mut program = model.compile(backend.as_ref(), CompileOptions::kv(DType::F16)).unwrap();
    TESTS.map(|test| count(program.as_mut(), model.config().vocab, test).unwrap())
}

#[test]
fn the_page_on_apples_gpus_is_what_the_plans_give() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/apple-speed.md");
    let page = page::page(&counted());
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, page).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let different = found.lines().zip(page.lines()).position(|(found, planned)| found != planned);
    let line = different.unwrap_or_else(|| found.lines().count().min(page.lines().count()));
    assert!(
        found == page,
        "docs/apple-speed.md is not what the plans give, from line {} on; `cargo xtask apple-speed` writes it anew.\n\
         found:   {:?}\nplanned: {:?}",
        line + 1,
        found.lines().nth(line),
        page.lines().nth(line)
    );
}
