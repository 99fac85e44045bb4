"""The passes and what runs them: `manager` (pass manager, pipelines, registry), `analysis` (facts), `cost` (prices), a folder a level."""
