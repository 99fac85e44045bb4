"""What a compilation tells: folders of files, traces, logs, reports."""
