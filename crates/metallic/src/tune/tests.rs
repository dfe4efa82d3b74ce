use super::*;
use crate::bench::Kind;

#[test]
fn the_fastest_wins_where_it_stands_out_from_the_noise_and_nothing_is_lost() {
    let quiet = |speed: f64| vec![speed; 5];
    let current = vec![quiet(100.0), quiet(50.0)];
    let same: Samples = vec![Vec::new(), Vec::new()];
    // Faster in one test, as fast in the other.
    assert_eq!(winner(&current, &[vec![quiet(110.0), Vec::new()]]), Some(0));
    assert_eq!(winner(&current, &[vec![quiet(103.0), Vec::new()], vec![quiet(110.0), quiet(50.2)]]), Some(1));
    // Ties, and less than can be told, keep what is there.
    assert_eq!(winner(&current, &[same.clone(), vec![quiet(100.0), quiet(50.0)]]), None);
    assert_eq!(winner(&current, &[vec![quiet(100.9), quiet(50.4)]]), None);
    assert_eq!(winner(&current, &[vec![quiet(110.0), Vec::new()], vec![quiet(110.0), Vec::new()]]), Some(0));
    // What is gained in one test is not paid for in another.
    assert_eq!(winner(&current, &[vec![quiet(150.0), quiet(48.0)]]), None);
    // A gain within what samples differ by among themselves.
    let noisy = vec![94.0, 97.0, 103.0, 108.0, 109.0];
    assert_eq!(winner(&current, &[vec![noisy.clone(), Vec::new()]]), None);
    assert_eq!(winner(&[noisy, quiet(50.0)].to_vec(), &[vec![quiet(108.0), Vec::new()]]), None);
    // One sample that fell out of line changes nothing.
    let hiccup = vec![110.0, 110.0, 20.0, 110.0, 110.0];
    assert_eq!(winner(&current, &[vec![hiccup, Vec::new()]]), Some(0));
    assert_eq!(winner(&current, &[]), None);
}

const TESTS: [Test; 2] = [
    Test { kind: Kind::Decode, tokens: 4, depth: 0, sequences: 1 },
    Test { kind: Kind::Prefill, tokens: 64, depth: 0, sequences: 1 },
];

/// A device whose speed follows from the numbers alone.
struct Planted {
    tuning: Tuning,
    decode: fn(&Tuning) -> f64,
    prefill: fn(&Tuning) -> f64,
    /// Numbers that cannot be planned, and such that compute something else.
    refused: fn(&Tuning) -> bool,
    wrong: fn(&Tuning) -> bool,
    samples: usize,
}

impl Planted {
    fn speed(&self, test: Test) -> f64 {
        match test.kind {
            Kind::Decode => (self.decode)(&self.tuning),
            Kind::Prefill => (self.prefill)(&self.tuning),
        }
    }
}

impl Variants for Planted {
    fn set(&mut self, tuning: Tuning) -> Result<(), BackendError> {
        self.tuning = tuning;
        Ok(())
    }

    fn look(&mut self, test: Test) -> Result<u64, BackendError> {
        if (self.refused)(&self.tuning) {
            return Err(BackendError::Unsupported { device: "gpu", op: "linear", reason: "too wide".into() });
        }
        Ok(self.speed(test).to_bits())
    }

    fn sample(&mut self, test: Test) -> Result<f64, BackendError> {
        self.samples += 1;
        // A device that is never quite the same.
        Ok(self.speed(test) * (1.0 + 0.001 * (self.samples % 3) as f64))
    }

    fn logits(&mut self) -> Result<Vec<Vec<f32>>, BackendError> {
        let off = if (self.wrong)(&self.tuning) { 5.0 } else { 0.001 };
        Ok(vec![vec![0.0, 10.0 + off], vec![1.0, 2.0]])
    }
}

const fn planted() -> Planted {
    Planted {
        tuning: Tuning::DEFAULT,
        decode: |_| 100.0,
        prefill: |_| 1000.0,
        refused: |_| false,
        wrong: |_| false,
        samples: 0,
    }
}

fn tuned(mut device: Planted, quick: bool) -> (Tunings, usize) {
    let plan = TunePlan { tests: TESTS.to_vec(), rounds: 3, quick };
    let mut told = Vec::new();
    let found = tune(&mut device, Tuning::DEFAULT, &plan, &mut |what| told.push(what.to_owned())).unwrap();
    assert_eq!(told.len(), Tuning::FIELDS.len() + usize::from(!found.tests.is_empty()));
    assert_eq!(device.tuning, found.after, "what was found is in use");
    (found, device.samples)
}

#[test]
fn planted_winners_are_found_one_field_after_another() {
    let device = Planted {
        decode: |t| 100.0 * if t.cell_groups == 4 { 1.3 } else { 1.0 } / f64::from(t.busy.max(200)) * 200.0,
        prefill: |t| 1000.0 + f64::from(t.tile_rounds * 100),
        ..planted()
    };
    let (found, _) = tuned(device, false);
    assert_eq!(found.after, Tuning { cell_groups: 4, tile_rounds: 8, ..Tuning::DEFAULT });
    assert_eq!(found.tests.len(), 2);
    let of = |name: &str| found.fields.iter().find(|tried| tried.field.name == name).unwrap();
    assert!((of("cell_groups").gain().unwrap()[0] - 1.3).abs() < 0.01);
    assert_eq!(of("cell_groups").gain().unwrap()[1], 1.0, "its plans are the same there");
    assert_eq!(of("busy").gain(), None, "others are slower");
    assert!(matches!(&of("busy").trials[3].outcome, Outcome::Ratios(ratios) if ratios[0] < 0.6));
    assert!(of("query_rows").trials.iter().all(|trial| trial.outcome == Outcome::Same));
}

#[test]
fn a_device_that_nothing_speeds_up_stays_as_it_is_and_little_is_measured() {
    let (found, samples) = tuned(planted(), false);
    assert_eq!((found.after, found.tests.len(), samples), (Tuning::DEFAULT, 0, 0));
}

#[test]
fn what_cannot_be_planned_or_computes_something_else_is_passed_over_with_the_reason() {
    let device = Planted {
        decode: |t| 100.0 + f64::from(t.matvec_simdgroups),
        prefill: |t| 1000.0 / f64::from(t.matvec_blocks),
        refused: |t| t.matvec_simdgroups == 8,
        wrong: |t| t.matvec_blocks == 1,
        ..planted()
    };
    let (found, _) = tuned(device, false);
    assert_eq!(found.after, Tuning { matvec_blocks: 2, ..Tuning::DEFAULT });
    let reason = |name: &str, value: u32| {
        let tried = found.fields.iter().find(|tried| tried.field.name == name).unwrap();
        match &tried.trials.iter().find(|trial| trial.value == value).unwrap().outcome {
            Outcome::Failed(reason) => reason.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert!(reason("matvec_simdgroups", 8).contains("too wide"));
    assert!(reason("matvec_blocks", 1).contains("another result: a logit is 15, it was 10.001"));
}

/// A device that is lost.
struct Broken;
impl Variants for Broken {
    fn set(&mut self, _: Tuning) -> Result<(), BackendError> {
        Ok(())
    }
    fn look(&mut self, _: Test) -> Result<u64, BackendError> {
        Err(BackendError::Failed { device: "gpu", reason: "lost".to_owned() })
    }
    fn sample(&mut self, _: Test) -> Result<f64, BackendError> {
        Ok(1.0)
    }
    fn logits(&mut self) -> Result<Vec<Vec<f32>>, BackendError> {
        Ok(Vec::new())
    }
}

#[test]
fn quick_looks_at_neighbours_and_a_broken_device_ends_it() {
    let device = Planted { decode: |t| 100.0 + 4.0 * f64::from(t.cell_groups), ..planted() };
    let (found, _) = tuned(device, true);
    assert_eq!(found.after.cell_groups, 2, "the next one, not the best");
    let plan = TunePlan { tests: TESTS.to_vec(), rounds: 1, quick: true };
    let error = tune(&mut Broken, Tuning::DEFAULT, &plan, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("lost"), "{error}");
}
