//! Choices against the stages written down one after another, with sorts.

use super::noise::gumbel_bound;
use super::*;

/// The stages word by word.
fn slow(choice: &Choice, edits: &[Edit], logits: &[f32]) -> Option<u32> {
    let mut choices = Choices::default();
    choices.push(choice, edits).unwrap();
    let (record, _) = Record::read(choices.words(), 0).unwrap();
    let mut left: Vec<(u32, f32)> = (0..).zip(logits.iter().map(|x| number(*x))).collect();
    for edit in edits {
        if let Some((_, x)) = left.get_mut(edit.id as usize) {
            *x = record.edited(*x, *edit);
        }
    }
    left.retain(|(_, x)| *x > f32::NEG_INFINITY);
    left.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let max = |left: &[(u32, f32)]| left.iter().map(|(_, x)| *x).fold(f32::NEG_INFINITY, f32::max);
    if choice.temperature == 0.0 {
        return left.first().map(|(id, _)| *id);
    }
    if choice.top_k > 0 {
        left.truncate(choice.top_k as usize);
    }
    let keep = |left: &mut Vec<(u32, f32)>, m: f32, share: u32| {
        let weigh = |x: f32| u128::from(weight(x - m));
        let total: u128 = left.iter().map(|(_, x)| weigh(*x)).sum();
        let mut held = 0;
        let count = left.iter().take_while(|(_, x)| {
            let more = held << 32 < total * u128::from(share);
            held += weigh(*x);
            more
        });
        let count = count.count();
        left.truncate(count);
    };
    if choice.typical < 1.0 {
        let m = max(&left);
        let weigh = |x: f32| u128::from(weight(x - m));
        let total: u128 = left.iter().map(|(_, x)| weigh(*x)).sum();
        let moment: u128 = left.iter().map(|(_, x)| weigh(*x) * u128::from(depth(x - m))).sum();
        let mean = (moment / total.max(1)) as u32;
        left.sort_by_key(|(id, x)| (depth(x - m).abs_diff(mean), *id));
        keep(&mut left, m, record.typical);
        left.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }
    let m = max(&left);
    if choice.top_p < 1.0 {
        keep(&mut left, m, record.top_p);
    }
    left.retain(|(_, x)| *x >= number(m + record.ln_min_p));
    let [low, high] = record.draw;
    let score = |(id, x): &(u32, f32)| {
        let bits = philox([id / 4, 0, low, high], record.seed)[*id as usize % 4];
        (x - m).mul_add(record.inverse_temperature, gumbel(bits))
    };
    left.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.0.cmp(&b.0)));
    left.first().map(|(id, _)| *id)
}

fn fast(choice: &Choice, edits: &[Edit], logits: &[f32]) -> Option<u32> {
    let mut choices = Choices::default();
    choices.push(&Choice { seed: 77, ..Choice::default() }, &[Edit { id: 3, count: 1, bias: 9.0 }]).unwrap();
    choices.push(choice, edits).unwrap();
    choose(choices.words(), 1, logits, &mut Scratch::default()).unwrap()
}

/// Numbers of a seed, each below `2³²`.
fn words(seed: u32) -> impl FnMut() -> u32 {
    let mut at = 0;
    move || {
        at += 1;
        philox([at, 0, 0, 0], [seed, 1])[0]
    }
}

/// Rows of all sorts: spread, nearly flat, full of equals, with what is no number, with extremes, without any number.
fn row(kind: u32, n: usize, next: &mut impl FnMut() -> u32) -> Vec<f32> {
    let spread = |next: &mut dyn FnMut() -> u32, size: f32| (uniform(next()) - 0.5) * size;
    let one = |next: &mut dyn FnMut() -> u32| match kind {
        0 => spread(next, 30.0),
        1 => spread(next, 0.1),
        2 => f32::from(next() as u8 % 4) - 2.0,
        3 => f32::from_bits(next()),
        4 if next().is_multiple_of(3) => f32::NAN,
        4 if next().is_multiple_of(3) => f32::NEG_INFINITY,
        4 => spread(next, 5.0),
        5 => [f32::MAX, f32::INFINITY, -0.0, 1e-38, f32::MIN, 0.0, f32::NEG_INFINITY][next() as usize % 7],
        6 => [f32::NAN, f32::NEG_INFINITY][next() as usize % 2],
        _ => -spread(next, 2.0).abs() * 1e4,
    };
    (0..n).map(|_| one(&mut *next)).collect()
}

fn settings(next: &mut impl FnMut() -> u32) -> Choice {
    let mut pick = |of: &[f32]| of[next() as usize % of.len()];
    Choice {
        temperature: pick(&[0.0, 1.0, 0.7, 1e-6, 3.0]),
        top_k: pick(&[0.0, 0.0, 1.0, 5.0, 40.0, 1000.0]) as u32,
        typical: pick(&[1.0, 1.0, 0.9, 0.3]),
        top_p: pick(&[1.0, 0.95, 0.5, 1e-12, 0.999_999_94]),
        min_p: pick(&[0.0, 0.0, 0.05, 1.0, 1e-40]),
        repetition: pick(&[1.0, 1.3, 0.5, 1e30]),
        presence: pick(&[0.0, 0.4, -1e38]),
        frequency: pick(&[0.0, -0.2, 1e38]),
        seed: u64::from(next()) << 32 | u64::from(next()),
        draw: u64::from(next()) << 31,
    }
}

fn edits(n: usize, next: &mut impl FnMut() -> u32) -> Vec<Edit> {
    let biases = [0.0, 0.0, 1.5, -2.0, f32::NEG_INFINITY, f32::MAX, f32::MIN];
    let ids = (0..n as u32 + 2).filter(|_| next().is_multiple_of(5)).collect::<Vec<_>>();
    let counts = [0, 1, 2, 3, Edit::REPEATED];
    let pick = |id| Edit { id, count: counts[next() as usize % 5], bias: biases[next() as usize % 7] };
    ids.into_iter().map(pick).collect()
}

#[test]
fn every_row_and_setting_gives_the_token_of_the_definition() {
    let mut next = words(1);
    for round in 0..6000 {
        let n = [1, 2, 3, 15, 16, 17, 64, 65, 300, 1000][next() as usize % 10];
        let logits = row(round % 8, n, &mut next);
        let choice = settings(&mut next);
        let edits = if round % 3 == 0 { edits(n, &mut next) } else { Vec::new() };
        let expected = slow(&choice, &edits, &logits);
        assert_eq!(fast(&choice, &edits, &logits), expected, "round {round}: {choice:?} of {n}");
    }
}

#[test]
fn large_rows_give_the_token_of_the_definition() {
    let mut next = words(2);
    for kind in [0, 1, 2, 7] {
        let logits = row(kind, 152_064, &mut next);
        let plain = Choice { seed: 5, draw: u64::from(kind), ..Choice::default() };
        for choice in [
            plain,
            Choice { temperature: 0.0, ..plain },
            Choice { top_k: 40, ..plain },
            Choice { top_p: 0.95, ..plain },
            Choice { typical: 0.9, ..plain },
            Choice { min_p: 0.05, temperature: 0.8, ..plain },
        ] {
            assert_eq!(fast(&choice, &[], &logits), slow(&choice, &[], &logits), "{choice:?}");
        }
    }
}

#[test]
fn a_row_without_a_number_has_no_choice() {
    for choice in [Choice::greedy(), Choice::default(), Choice { top_k: 3, top_p: 0.5, ..Choice::default() }]
    {
        assert_eq!(fast(&choice, &[], &[f32::NAN, f32::NEG_INFINITY, f32::NAN, f32::NAN]), None);
        assert_eq!(fast(&choice, &[], &[]), None);
        let banned = [0, 1].map(|id| Edit { id, count: 3, bias: f32::NEG_INFINITY });
        assert_eq!(
            fast(&Choice { presence: -1e38, frequency: f32::MIN, ..choice }, &banned, &[1.0, 2.0]),
            None
        );
        assert_eq!(fast(&choice, &banned, &[9.0, 9.0, -1.0, f32::NAN]), Some(2));
    }
}

#[test]
fn no_reward_makes_a_banned_token_possible() {
    for huge in [-1.0, -1e38, f32::MIN] {
        let base = Choice { presence: huge, frequency: huge, repetition: 1e-30, ..Choice::default() };
        for choice in [
            base,
            Choice { temperature: 0.0, ..base },
            Choice { top_k: 2, ..base },
            Choice { top_p: 0.9, ..base },
            Choice { typical: 0.9, min_p: 0.5, ..base },
        ] {
            let banned = [0, 2].map(|id| Edit { id, count: 3, bias: f32::NEG_INFINITY });
            // Whoever is impossible already stays so without a ban, too.
            for best in [f32::MAX, f32::INFINITY, f32::NAN, f32::NEG_INFINITY] {
                assert_eq!(fast(&choice, &banned, &[best, -3e38, best, f32::NAN]), Some(1));
            }
        }
    }
}

#[test]
fn penalties_lower_what_came_before_and_leave_possible_what_was() {
    let mut choices = Choices::default();
    choices
        .push(&Choice { repetition: 2.0, presence: 0.5, frequency: 0.25, ..Choice::default() }, &[])
        .unwrap();
    let (record, _) = Record::read(choices.words(), 0).unwrap();
    let edited = |x, count, bias| record.edited(x, Edit { id: 0, count, bias });
    assert_eq!(edited(3.0, 0, 0.0), 3.0);
    assert_eq!(edited(3.0, 2, 0.0), 0.5);
    assert_eq!(edited(-3.0, 1, 0.0), -6.75);
    assert_eq!(edited(3.0, Edit::REPEATED, 1.0), 2.0);
    assert_eq!(edited(-3.0, Edit::REPEATED, 0.0), -6.0);
    assert_eq!(edited(3.0, 1, 1.0), 1.25);
    assert_eq!(edited(f32::MIN, 1, 0.0), f32::MIN);
    assert_eq!(edited(f32::INFINITY, 0, f32::MAX), f32::MAX);
    assert_eq!(edited(f32::NAN, 1, 5.0), f32::NEG_INFINITY);
}

#[test]
fn of_equals_the_lowest_ids_stay() {
    assert_eq!(argmax(&[f32::NAN, 1.0, 1.0]), Some(1));
    assert_eq!(argmax(&[-0.0, 0.0, 1e-40]), Some(0));
    assert_eq!(argmax(&[f32::MAX, f32::INFINITY]), Some(0));
    let mut scratch = Scratch::default();
    let best: Vec<(u32, f32)> = top_k(&[2.0, 5.0, f32::NAN, 5.0, 2.0], 3, &mut scratch).collect();
    assert_eq!(best, [(1, 5.0), (3, 5.0), (0, 2.0)]);
    assert_eq!(top_k(&[1.0], 0, &mut scratch).count(), 0);
    // Half of four equals is two of them.
    for draw in 0..100 {
        let half = Choice { top_p: 0.5, draw, ..Choice::default() };
        assert!(fast(&half, &[], &[1.0; 4]).is_some_and(|id| id < 2));
    }
}

#[test]
fn draws_have_the_probabilities_of_the_softmax() {
    const DRAWS: u64 = 20_000;
    let logits = [0.0f32, 1.0, 2.0, f32::NEG_INFINITY, f32::NAN];
    let total: f32 = logits[..3].iter().map(|x| (x / 0.7).exp()).sum();
    let mut counts = [0u32; 5];
    for draw in 0..DRAWS {
        let choice = Choice { temperature: 0.7, seed: 9, draw, ..Choice::default() };
        counts[fast(&choice, &[], &logits).unwrap() as usize] += 1;
    }
    assert_eq!(counts[3..], [0, 0]);
    for (x, count) in logits.iter().zip(counts).take(3) {
        let (found, expected) = (count as f32 / DRAWS as f32, (x / 0.7).exp() / total);
        assert!((found - expected).abs() < 0.012, "{found} of {expected}");
    }
}

#[test]
fn weights_are_exponentials_that_never_rise() {
    let mut before = u32::MAX;
    for fraction in 0..OCTAVE {
        let found = super::weight::weight_at(fraction);
        assert!(found < before && found >= 1 << 30, "{fraction}");
        let exact = 2f64.powf(31.0 - f64::from(fraction) / f64::from(OCTAVE));
        assert!((f64::from(found) / exact - 1.0).abs() < 2e-8);
        before = found;
    }
    assert_eq!([weight(0.0), weight(-40.0), weight(f32::NEG_INFINITY)], [1 << 31, 0, 0]);
    for i in 0..2000 {
        let d = i as f32 * -0.01;
        let exact = 2f64.powi(31) * f64::from(d).exp();
        assert!((f64::from(weight(d)) - exact).abs() <= 1.0 + 1e-6 * exact, "{d}");
    }
}

#[test]
fn depths_are_rounded_down() {
    let whole = (0..3000).map(|i| i as f32).chain((0..28).map(|i| (1u32 << i) as f32));
    let near = whole.flat_map(|x| [x.next_down(), x, x.next_up(), x + 0.5, x * 89_477.1]);
    for x in near.chain([f32::MIN_POSITIVE, 1e-40, 0.999_999_94, 1e30, f32::INFINITY, f32::NAN, -7.0]) {
        let d = x / -12_102_203.0;
        let expected = (d * -12_102_203.0).min(WEIGHTLESS as f32).max(0.0) as u32;
        assert_eq!(depth(d), expected, "{x}");
    }
}

#[test]
fn a_share_of_the_weight_is_rounded_up() {
    for total in [1, 7, 1 << 31, (1 << 32) + 1, u64::MAX >> 1] {
        for share in [1, 3, 1 << 31, u32::MAX] {
            let exact = (u128::from(total) * u128::from(share)).div_ceil(1 << 32);
            assert_eq!(u128::from(part(total, share)), exact);
        }
    }
}

#[test]
fn philox_gives_the_published_numbers() {
    assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    let ones = u32::MAX;
    assert_eq!(philox([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    let found = philox(counter, [0xa409_3822, 0x299f_31d0]);
    assert_eq!(found, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
}

#[test]
fn the_logarithm_is_within_a_ten_millionth() {
    for i in 0..200_000 {
        let x = f32::from_bits(0x3300_0000 + i * 5_000);
        let (found, exact) = (f64::from(ln(x)), f64::from(x).ln());
        assert!((found - exact).abs() <= 1e-7 * exact.abs().max(1.0), "ln({x}) = {found}, not {exact}");
    }
    assert_eq!(ln(1.0), 0.0);
}

#[test]
fn noise_is_between_its_bounds() {
    let ends = (0..32).flat_map(|n| [u32::MAX << n, u32::MAX >> n, (1 << n) - 1, !(1 << n)]);
    for bits in ends.chain((0..=u32::MAX).step_by(9973)) {
        let noise = gumbel(bits);
        let bound = gumbel_bound(bits).min(MOST_NOISE - 0.05);
        assert!((LEAST_NOISE + 0.05..=bound).contains(&noise), "{bits:x}: {noise}, not {bound}");
    }
}

#[test]
fn words_that_nobody_packed_are_refused_or_chosen_by() {
    let mut next = words(3);
    let mut choices = Choices::default();
    for _ in 0..3 {
        choices.push(&settings(&mut next), &edits(50, &mut next)).unwrap();
    }
    let good = choices.words().to_vec();
    assert_eq!(choices.rows(), 3);
    let logits = row(0, 50, &mut next);
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut bad = good.clone();
        for _ in 0..=next() % 3 {
            let at = next() as usize % bad.len();
            bad[at] = [next(), next() % 64, u32::MAX, 0][next() as usize % 4];
        }
        bad.truncate(next() as usize % (bad.len() + 1));
        let chosen = choose(&bad, next() as usize % 4, &logits, &mut Scratch::default());
        refused += u32::from(chosen.is_err());
    }
    assert!((1000..19_000).contains(&refused), "{refused}");
    let missing = choose(&good, usize::MAX, &logits, &mut Scratch::default());
    assert!(matches!(missing, Err(ChoiceError::Words { .. })));
}

#[test]
fn what_is_out_of_range_is_named() {
    let base = Choice::default();
    for (name, choice) in [
        ("temperature", Choice { temperature: -1.0, ..base }),
        ("temperature", Choice { temperature: 1e-9, ..base }),
        ("temperature", Choice { temperature: f32::NAN, ..base }),
        ("typical", Choice { typical: 0.0, ..base }),
        ("top_p", Choice { top_p: 1.1, ..base }),
        ("min_p", Choice { min_p: f32::NAN, ..base }),
        ("repetition", Choice { repetition: 1e-40, ..base }),
        ("presence", Choice { presence: f32::INFINITY, ..base }),
        ("frequency", Choice { frequency: f32::NAN, ..base }),
    ] {
        let found = Choices::default().push(&choice, &[]);
        assert!(
            matches!(found, Err(ChoiceError::Parameter { name: found, .. }) if found == name),
            "{found:?}"
        );
    }
    let edit = |id, bias| Edit { id, count: 0, bias };
    let twice = Choices::default().push(&base, &[edit(4, 0.0), edit(4, 0.0)]);
    assert_eq!(twice, Err(ChoiceError::Order { id: 4, before: 4 }));
    assert!(Choices::default().push(&base, &[edit(4, f32::NAN)]).is_err());
}
