//! The alerts and the dashboard that users copy: they name metrics that exist, and Prometheus can
//! read them.

use std::collections::BTreeSet;

/// Returns the metrics that a text names, without the suffixes of histograms.
pub(crate) fn metrics(text: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let words = text.split(|c| !is_name(c));
    let names = words.filter(|word| word.starts_with("tourbillon_"));
    names
        .map(|name| name.strip_suffix("_bucket").unwrap_or(name))
        // A pattern of names, which ends where its wildcard begins.
        .filter(|name| *name != "tourbillon_")
        .collect()
}

/// Returns what comes after `key` on the lines that begin with it.
pub(crate) fn values<'a>(yaml: &'a str, key: &str) -> Vec<&'a str> {
    let lines = yaml
        .lines()
        .map(|line| line.trim().trim_start_matches("- "));
    lines
        .filter_map(|line| line.strip_prefix(key))
        .map(str::trim)
        .collect()
}

/// Returns all queries of a dashboard, with values for its variables.
pub(crate) fn queries(dashboard: &serde_json::Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().expect("a list of panels");
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let queries = targets.flatten().map(|target| {
        let query = target["expr"].as_str().expect("a query");
        query
            .replace("$__rate_interval", "5m")
            .replace("$job", ".+")
    });
    queries.collect()
}

/// Returns a file of rules with these queries, which says to `promtool` what they are.
pub(crate) fn rules(queries: &[String]) -> String {
    let rules = queries.iter().enumerate().map(|(number, query)| {
        format!(
            "      - record: query:{number}\n        expr: {}\n",
            serde_json::json!(query)
        )
    });
    format!(
        "groups:\n  - name: dashboard\n    rules:\n{}",
        rules.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_metrics_are_found_in_queries() {
        let text = "rate(tourbillon_a_bucket{x=~\"tourbillon_.+\"}[5m]) > tourbillon_b_total or up";
        let expected = BTreeSet::from(["tourbillon_a", "tourbillon_b_total"]);
        assert_eq!(metrics(text), expected);
    }

    #[test]
    fn values_and_queries_are_read() {
        assert_eq!(values("a:\n  - alert: B\n    x: 1\n", "alert:"), ["B"]);
        let dashboard = serde_json::json!({"panels": [
            {"type": "row"},
            {"targets": [{"expr": "rate(a{job=~\"$job\"}[$__rate_interval])"}]},
        ]});
        let found = queries(&dashboard);
        assert_eq!(found, ["rate(a{job=~\".+\"}[5m])"]);
        assert!(rules(&found).ends_with("expr: \"rate(a{job=~\\\".+\\\"}[5m])\"\n"));
    }
}
