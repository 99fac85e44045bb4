"""Where buffers lie: offsets, reuse, the pool, the peak."""
