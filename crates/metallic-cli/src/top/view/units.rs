//! Numbers as people read them, short enough for columns.

/// `420 µs`, `3.21 ms`, `1.50 s`, `2:05`, `1:02:05`.
pub(crate) fn seconds(value: f64) -> String {
    match value {
        v if !v.is_finite() => "-".to_owned(),
        v if v <= 0.0 => "0".to_owned(),
        v if v < 0.000_999_5 => format!("{:.0} µs", v * 1e6),
        v if v < 0.999_5 => format!("{} ms", three_digits(v * 1e3)),
        v if v < 99.95 => format!("{} s", three_digits(v)),
        v => clock(v),
    }
}

/// `0:07`, `2:05`, `1:02:05`, `3d 01:02`.
pub(crate) fn clock(value: f64) -> String {
    let all = value.max(0.0) as u64;
    let (days, hours, minutes, seconds) = (all / 86400, all / 3600 % 24, all / 60 % 60, all % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{seconds:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{days}d {hours:02}:{minutes:02}"),
    }
}

/// `0.52`, `12.3`, `456`, `1.2k`, `3.4M`.
pub(crate) fn amount(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "-".to_owned(),
        v if v < 999.5 => three_digits(value),
        v if v < 999_500.0 => format!("{}k", three_digits(value / 1e3)),
        v if v < 999_500_000.0 => format!("{}M", three_digits(value / 1e6)),
        _ => format!("{}G", three_digits(value / 1e9)),
    }
}

/// A whole number: as it is while it is short.
pub(crate) fn count(value: u64) -> String {
    if value < 100_000 { value.to_string() } else { amount(value as f64) }
}

/// `87 %`, `4.2 %`.
pub(crate) fn percent(share: f64) -> String {
    let value = share * 100.0;
    match value {
        v if !v.is_finite() => "-".to_owned(),
        v if v > 0.0 && v < 0.05 => "<0.1 %".to_owned(),
        v if v == 0.0 || v >= 9.95 => format!("{v:.0} %"),
        v => format!("{v:.1} %"),
    }
}

fn three_digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases =
            [(0.0, "0"), (4.2e-4, "420 µs"), (0.003_21, "3.21 ms"), (0.99, "990 ms"), (1.5, "1.50 s")];
        for (value, text) in
            cases.into_iter().chain([(125.0, "2:05"), (3725.0, "1:02:05"), (1e308, "213503982334601d 07:00")])
        {
            assert_eq!(seconds(value), text);
        }
        assert_eq!((clock(7.9), clock(262_920.0)), ("0:07".to_owned(), "3d 01:02".to_owned()));
        for (value, text) in
            [(0.0, "0"), (0.517, "0.52"), (999.4, "999"), (999.6, "1.00k"), (3.4e6, "3.40M"), (1e12, "1000G")]
        {
            assert_eq!(amount(value), text);
        }
        assert_eq!((count(99_999), count(123_456)), ("99999".to_owned(), "123k".to_owned()));
        assert_eq!([0.0, 0.0001, 0.042, 0.87, 1.0].map(percent), ["0 %", "<0.1 %", "4.2 %", "87 %", "100 %"]);
        assert_eq!((seconds(f64::NAN), percent(f64::NAN)), ("-".to_owned(), "-".to_owned()));
    }
}
