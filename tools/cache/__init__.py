"""What is kept between processes: compiled graphs and their keys."""
