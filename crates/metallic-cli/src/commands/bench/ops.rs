//! Where the time of a step goes: a line for each kernel and the weights it works on.

use std::fmt::Write;
use std::time::Duration;

use metallic::bench::Measurement;
use metallic::core::OpCost;
use serde_json::{Value, json};

use super::{GIGA, TERA, cell};

/// Microseconds of each of so many steps.
fn per_step(time: Duration, steps: u64) -> f64 {
    time.as_secs_f64() * 1e6 / steps.max(1) as f64
}

/// So much a second; `None` for nothing, or in no time.
fn rate(amount: u64, time: Duration) -> Option<f64> {
    (amount > 0 && !time.is_zero()).then(|| amount as f64 / time.as_secs_f64())
}

pub(super) fn row(cost: &OpCost, steps: u64) -> Value {
    json!({
        "op": cost.op,
        "part": cost.part,
        "kernel": cost.kernel,
        "times_per_step": cost.times as f64 / steps.max(1) as f64,
        "us_per_step": per_step(cost.time, steps),
        "gb_per_s": rate(cost.bytes, cost.time).map(|rate| rate / GIGA),
        "tflop_per_s": rate(cost.multiply_adds, cost.time).map(|rate| 2.0 * rate / TERA),
    })
}

pub(super) fn table(name: &str, measured: &Measurement) -> String {
    let mut costs: Vec<&OpCost> = measured.stats.ops.iter().collect();
    costs.sort_by_key(|cost| std::cmp::Reverse(cost.time));
    let sum: Duration = costs.iter().map(|cost| cost.time).sum();
    let all = sum.max(measured.stats.device_time);
    let share = |time: Duration| 100.0 * time.as_secs_f64() / all.as_secs_f64().max(1e-12);
    let width =
        |of: fn(&OpCost) -> String| costs.iter().map(|cost| of(cost).chars().count()).max().unwrap_or(0);
    let (ops, kernels) = (width(label).max(name.len()).max(18), width(|cost| cost.kernel.to_owned()).max(6));
    let mut text = format!(
        "\n{name:ops$} {:kernels$} {:>7} {:>10} {:>7} {:>9} {:>9}\n",
        "KERNEL", "TIMES", "µs A STEP", "SHARE", "GB/s", "TFLOP/s"
    );
    for cost in &costs {
        let times = cost.times as f64 / measured.steps.max(1) as f64;
        let bytes = cell(rate(cost.bytes, cost.time).map(|rate| rate / GIGA), 1, "");
        let flops = cell(rate(cost.multiply_adds, cost.time).map(|rate| 2.0 * rate / TERA), 2, "");
        let (us, share) = (per_step(cost.time, measured.steps), share(cost.time));
        let (label, kernel) = (label(cost), cost.kernel);
        let _ = writeln!(
            text,
            "{label:ops$} {kernel:kernels$} {times:>7.1} {us:>10.1} {share:>6.1}% {bytes:>9} {flops:>9}"
        );
    }
    let between = all.saturating_sub(sum);
    if !between.is_zero() {
        let (us, share) = (per_step(between, measured.steps), share(between));
        let _ = writeln!(
            text,
            "{:ops$} {:kernels$} {:>7} {us:>10.1} {share:>6.1}%",
            "between operations", "", ""
        );
    }
    text
}

/// The operation, and the weights it takes.
fn label(cost: &OpCost) -> String {
    if cost.part.is_empty() { cost.op.to_owned() } else { format!("{} {}", cost.op, cost.part) }
}

#[cfg(test)]
mod tests {
    use metallic::core::RunStats;

    use super::*;

    fn cost(op: &'static str, part: &str, kernel: &'static str, us: u64) -> OpCost {
        let (part, time) = (part.to_owned(), Duration::from_micros(us));
        OpCost { op, part, layer: None, kernel, times: 8, time, bytes: 10_000 * us, multiply_adds: 0 }
    }

    #[test]
    fn the_longest_comes_first_and_what_lies_between_is_told() {
        let ops = vec![cost("embed", "", "rows", 20), cost("project", "ffn_down", "cell_matvec_4", 140)];
        let stats = RunStats { ops, device_time: Duration::from_micros(200), ..RunStats::default() };
        let measured = Measurement { stats, steps: 2, seconds: 1.0, ..Measurement::default() };
        let table = table("tg2", &measured);
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["project", "ffn_down", "cell_matvec_4", "4.0", "70.0", "70.0%", "10.0", "-"]);
        assert_eq!(lines[3], ["embed", "rows", "4.0", "10.0", "10.0%", "10.0", "-"]);
        assert_eq!(lines[4], ["between", "operations", "20.0", "20.0%"]);
        let row = row(&measured.stats.ops[1], measured.steps);
        assert_eq!((&row["times_per_step"], &row["us_per_step"]), (&json!(4.0), &json!(70.0)));
        assert_eq!((&row["gb_per_s"], &row["tflop_per_s"]), (&json!(10.0), &Value::Null));
    }
}
