"""Which kernel a contraction or an attention becomes, by measurement or price."""
