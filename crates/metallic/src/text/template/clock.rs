//! `strftime_now`: the date in a system prompt.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats `time`, in UTC, as Python's `strftime` does in the C locale. Unknown directives stay as they are.
pub(super) fn strftime(format: &str, time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, clock) = (seconds / 86400, seconds % 86400);
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    let (year, month, day) = civil(days);
    let weekday = DAYS[(days % 7) as usize];
    let name = MONTHS[(month - 1) as usize];
    let half = if hour < 12 { "AM" } else { "PM" };
    let of_twelve = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let Some(directive) = chars.next() else {
            out.push('%');
            break;
        };
        // `%-d` is `%d` without padding.
        let (plain, directive) = match directive {
            '-' => (true, chars.next().unwrap_or('-')),
            other => (false, other),
        };
        let two = |n: u64| if plain { n.to_string() } else { format!("{n:02}") };
        let text = match directive {
            'Y' => year.to_string(),
            'y' => two(year % 100),
            'm' => two(month),
            'd' => two(day),
            'e' => format!("{day:>2}"),
            'B' => name.to_owned(),
            'b' | 'h' => name[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'H' => two(hour),
            'I' => two(of_twelve),
            'M' => two(minute),
            'S' => two(second),
            'p' => half.to_owned(),
            'j' => format!("{:03}", days - days_before(year, 1, 1) + 1),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            other => format!("%{other}"),
        };
        out.push_str(&text);
    }
    out
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days_before(year: u64, month: u64, day: u64) -> u64 {
    // Years begin in March, so that the leap day is the last of its year.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * m + 2) / 5 + day - 1;
    y * 365 + y / 4 - y / 100 + y / 400 + day_of_year - 719_468
}

/// Year, month (from 1) and day (from 1) of a day since 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before(year + 1, 1, 1) <= days {
        year += 1;
    }
    let mut month = 1;
    while month < 12 && days_before(year, month + 1, 1) <= days {
        month += 1;
    }
    (year, month, days - days_before(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |s| UNIX_EPOCH + Duration::from_secs(s);
        assert_eq!(strftime("%d %b %Y", at(0)), "01 Jan 1970");
        assert_eq!(
            strftime("%A, %B %-d, %Y %H:%M:%S %j", at(951_782_400)),
            "Tuesday, February 29, 2000 00:00:00 060"
        );
        assert_eq!(strftime("%Y-%m-%d %I%p 100%%", at(1_735_689_599)), "2024-12-31 11PM 100%");
        assert_eq!(strftime("%F %q %", at(4_102_444_800)), "2100-01-01 %q %");
    }
}
